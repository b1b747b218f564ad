"""Tokenizers of encoders in GGUF files: WordPiece (`bert`) and SentencePiece's unigram model (`t5`, XLM-R's)."""

from array import array
from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import Unigram, WordPiece

from lullm.config.gguf.file import GGUFFile
from lullm.errors import ModelLoadError
from lullm.text.token_bytes import check_lengths

_PREFIX = "tokenizer.ggml."
_SPACE = "▁"
_NORMAL, _UNKNOWN, _CONTROL, _UNUSED, _BYTE = 1, 2, 3, 5, 6
"""Types of tokens."""
_CONTINUES = "##"
_MASK = "<mask>"


def spelled(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    """WordPiece's own tokens: a file marks beginnings of words with '▁', and not what continues them."""
    return [
        token if kind == _CONTROL else token.removeprefix(_SPACE) if token.startswith(_SPACE) else _CONTINUES + token
        for token, kind in zip(tokens, types, strict=True)
    ]


def word_pieces(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> Backend:
    """BERT's tokenizer. `tokens`: as `spelled` gives them."""
    check_lengths(tokens, str(file.path))
    vocab = {token: number for number, token in enumerate(tokens)}
    number = file.metadata.get(f"{_PREFIX}unknown_token_id")
    unknown = tokens[number] if isinstance(number, int) and 0 <= number < len(tokens) else "[UNK]"
    if len(vocab) != len(tokens) or unknown not in vocab:
        raise ModelLoadError(f"{file.path}: its tokens must be different, and one of them for unknown words")
    stated = file.metadata.get(f"{_PREFIX}normalizer.lowercase")
    lowercase = not _has_capitals(tokens, types) if stated is None else bool(stated)
    strips = file.metadata.get(f"{_PREFIX}normalizer.strip_accents")
    backend = Backend(WordPiece(vocab=vocab, unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=lowercase, strip_accents=None if strips is None else bool(strips)
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix=_CONTINUES)
    return backend


def _has_capitals(tokens: Sequence[str], types: Sequence[int]) -> bool:
    """Whether some word has: older files do not say whether a text is lowercased. `[unused5]` is no word."""
    words = (token for token, kind in zip(tokens, types, strict=True) if kind == _NORMAL and token[:1] != "[")
    return any("A" <= letter <= "Z" for word in words for letter in word)


def with_mask(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> tuple[list[str], list[int]]:
    """The vocabulary without unused tokens at its end, and with XLM-R's mask, which is in no SentencePiece model.

    So the scores of unused tokens, far below all others, do not become the score of what is unknown.
    """
    number = file.metadata.get(f"{_PREFIX}mask_token_id")
    tokens, types = list(tokens), list(types)
    if isinstance(number, int) and 0 <= number < len(tokens) and types[number] == _UNUSED and _MASK not in tokens:
        tokens[number], types[number] = _MASK, _CONTROL
    while types and types[-1] == _UNUSED:
        del tokens[-1], types[-1]
    return tokens, types


def unigram(file: GGUFFile, tokens: list[str], types: Sequence[int], scores: Sequence[float]) -> Backend:
    """The unigram model. The tokens, types and scores: of `with_mask`."""
    check_lengths(tokens, str(file.path))
    lowest = min((score for score, kind in zip(scores, types, strict=True) if kind == _NORMAL), default=0.0)
    known = [(token, max(score, lowest)) for token, score in zip(tokens, scores, strict=True)]
    unknown = next((number for number, kind in enumerate(types) if kind == _UNKNOWN), None)
    backend = Backend(Unigram(known, unknown, _BYTE in types))
    if table := _table(file):
        backend.normalizer = normalizers.Precompiled(table)
    scheme = "always" if file.metadata.get(f"{_PREFIX}add_space_prefix", True) else "never"
    spaces: Any = pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    if file.metadata.get(f"{_PREFIX}remove_extra_whitespaces", True):
        spaces = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces])
    backend.pre_tokenizer = spaces
    backend.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme=scheme)
    return backend


def _table(file: GGUFFile) -> bytes:
    """What characters become, as SentencePiece stores it. Raises ModelLoadError: it is no array of bytes."""
    stated = file.metadata.get(f"{_PREFIX}precompiled_charsmap")
    if stated is None:
        return b""
    if not isinstance(stated, array) or stated.itemsize != 1:
        raise ModelLoadError(f"{file.path}: {_PREFIX}precompiled_charsmap must be an array of bytes")
    return stated.tobytes()
