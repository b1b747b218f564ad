"""SentencePiece (https://arxiv.org/abs/1808.06226): a folder's `tokenizer.model` as a backend of the library.

The file is a message of protocol buffers (https://protobuf.dev/programming-guides/encoding), of which a few fields are
read. Its two kinds are BPE, whose merges follow from the scores of the tokens, and the unigram model.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from lullm.config.field import boolean
from lullm.config.json_file import read_content
from lullm.errors import ModelLoadError
from lullm.text.token_bytes import check_lengths
from lullm.text.vocabulary.added import surround
from lullm.units import MIB

FILE = "tokenizer.model"
_LARGEST = 64 * MIB
_SPACE = "▁"
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
"""Types of pieces."""
_ROLES = {40: ("unk_token", 0), 41: ("bos_token", 1), 42: ("eos_token", 2), 43: ("pad_token", -1)}
"""Fields of the trainer's part: role, and the default id."""


@dataclass(frozen=True, slots=True)
class _Pieces:
    tokens: list[str]
    scores: list[float]
    types: list[int]

    def of_type(self, *types: int) -> list[str]:
        return [token for token, kind in zip(self.tokens, self.types, strict=True) if kind in types and token]


def read_sentence_piece(path: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend of `path`, a tokenizer.model, special tokens by role, and no chat template.

    `config`: of tokenizer_config.json.

    Raises:
        ModelLoadError: the file is damaged, no SentencePiece model, or of a kind that is not supported.
    """
    content = read_content(path, _LARGEST)
    try:
        message = _fields(content)
        pieces = _renamed(_pieces(message.get(1, [])), config.get("added_tokens_decoder"))
        trainer, normalizer = (_fields(message.get(number, [b""])[-1]) for number in (2, 3))
        kind = int(trainer.get(3, [_UNIGRAM])[-1])
        backend = _backend(pieces, kind, trainer, normalizer)
    except ModelLoadError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    except Exception as error:  # of the format, and the library's bare Exception
        raise ModelLoadError(
            f"{path} is no SentencePiece model ({error!r}); convert it once with transformers: "
            "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        ) from None
    roles = _roles(trainer, pieces.tokens)
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in pieces.of_type(_UNKNOWN, _CONTROL)]
    )
    if config.get("tokenizer_class") == _CHATGLM:
        return _with_chatglm_tokens(backend), roles, {}
    own = pieces.of_type(_USER_DEFINED)
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])
    before = roles.get("bos_token") if boolean(config, "add_bos_token", kind == _BPE) else None
    after = roles.get("eos_token") if boolean(config, "add_eos_token", False) else None
    surround(backend, [before], [after], has_bytes=False)
    return backend, roles, {}


_CHATGLM = "ChatGLMTokenizer"
_CHATGLM_START = ("[gMASK]", "sop")
_CHATGLM_TOKENS = ("[MASK]", "[gMASK]", "[sMASK]", "sop", "eop")
_CHATGLM_ROLES = ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")


def _with_chatglm_tokens(backend: Backend) -> Backend:
    """With the tokens behind ChatGLM2's and ChatGLM3's pieces, which the file does not have, and two before every text.

    Some are words (sop): they count as tokens where they stand alone, so that no word is cut, and not as special ones,
    whose letters would be guarded in every key and value of a conversation.
    """
    for token in (*_CHATGLM_TOKENS, *_CHATGLM_ROLES):
        is_word = token.isalpha()
        backend.add_tokens([AddedToken(token, special=not is_word, normalized=False, single_word=is_word)])
    surround(backend, _CHATGLM_START, [], has_bytes=False)
    return backend


def _fields(message: bytes) -> dict[int, list[Any]]:
    """The values of a message by field: integers, bytes, or floats of 4 bytes. Raises ValueError, IndexError."""
    found: dict[int, list[Any]] = {}
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        value: Any
        if key & 7 == 0:
            value, at = _varint(message, at)
        elif key & 7 == 2:
            size, at = _varint(message, at)
            value, at = message[at : at + size], at + size
        elif key & 7 == 5:
            (value,), at = struct.unpack_from("<f", message, at), at + 4
        elif key & 7 == 1:
            value, at = None, at + 8
        else:
            raise ValueError(f"wire type {key & 7}")
        if at > len(message):
            raise ValueError("it ends within a field")
        found.setdefault(key >> 3, []).append(value)
    return found


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of 64 bits, two's complement, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            break
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
    return value - (1 << 64) if value >> 63 else value, at


def _pieces(messages: Sequence[bytes]) -> _Pieces:
    pieces = _Pieces([], [], [])
    for fields in map(_fields, messages):
        pieces.tokens.append(fields.get(1, [b""])[-1].decode())
        pieces.scores.append(float(fields.get(2, [0.0])[-1]))
        pieces.types.append(int(fields.get(3, [1])[-1]))
    if not pieces.tokens or len(set(pieces.tokens)) != len(pieces.tokens):
        raise ModelLoadError("its pieces must be different, and some")
    check_lengths(pieces.tokens, "its vocabulary")
    return pieces


def _renamed(pieces: _Pieces, declared: Any) -> _Pieces:
    """With the names that tokenizer_config.json gives to pieces: InternLM2's last are called [UNUSED_TOKEN_141] in the
    file, and <|im_start|> there. `added.add_declared` adds them, and names what is damaged.
    """
    tokens, types = list(pieces.tokens), list(pieces.types)
    for key, entry in declared.items() if isinstance(declared, dict) else ():
        content = entry.get("content") if isinstance(entry, dict) else None
        number = int(key) if key.isdecimal() and len(key) < 10 else len(tokens)
        if isinstance(content, str) and content not in pieces.tokens and number < len(tokens):
            tokens[number], types[number] = content, _NORMAL
    return _Pieces(tokens, pieces.scores, types)


def _roles(trainer: dict[int, list[Any]], tokens: list[str]) -> dict[str, str]:
    ids = {role: int(trainer.get(field, [default])[-1]) for field, (role, default) in _ROLES.items()}
    return {role: tokens[number] for role, number in ids.items() if 0 <= number < len(tokens)}


def _backend(pieces: _Pieces, kind: int, trainer: dict[int, list[Any]], normalizer: dict[int, list[Any]]) -> Backend:
    if kind not in (_UNIGRAM, _BPE) or trainer.get(24, [0])[-1]:  # words, characters; spaces behind words
        raise ModelLoadError(
            "its kind of SentencePiece model is not supported, only BPE and unigram with spaces before words; convert "
            "it once with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    unknown, has_bytes = next(iter(pieces.of_type(_UNKNOWN)), None), bool(trainer.get(35, [0])[-1])
    if kind == _BPE:
        vocab = {token: number for number, token in enumerate(pieces.tokens)}
        merges = list(_merges(vocab, pieces))
        model: Any = BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes)
    else:
        unknown_id = None if unknown is None else pieces.tokens.index(unknown)
        model = Unigram(list(zip(pieces.tokens, pieces.scores, strict=True)), unknown_id, has_bytes)
    backend = Backend(model)
    has_prefix = bool(normalizer.get(3, [1])[-1])
    backend.normalizer = normalizers.Sequence(list(_normalizers(normalizer, has_prefix)))
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if has_prefix else steps)
    return backend


def _normalizers(normalizer: dict[int, list[Any]], has_prefix: bool) -> Iterator[Any]:
    table = normalizer.get(2, [b""])[-1]
    if table:
        yield normalizers.Precompiled(table)
    if normalizer.get(4, [1])[-1]:  # extra spaces are removed
        yield normalizers.Strip()
        yield normalizers.Replace(Regex(" {2,}"), " ")
    if has_prefix:
        yield normalizers.Prepend(_SPACE)
    yield normalizers.Replace(" ", _SPACE)


def _merges(vocab: dict[str, int], pieces: _Pieces) -> Iterator[tuple[str, str]]:
    """All pairs that make a token, the best token first: SentencePiece joins by the score of the result."""
    found = []
    for token, score in zip(pieces.tokens, pieces.scores, strict=True):
        for at in range(1, len(token)):
            left, right = token[:at], token[at:]
            if left in vocab and right in vocab:
                found.append((-score, vocab[left], vocab[right], left, right))
    for *_, left, right in sorted(found):
        yield left, right
