"""The tokenizer that a GGUF file describes: its vocabulary, special tokens and chat template, as a backend.

Kinds: `gpt2`, byte-level BPE with a regular expression that the file names; `llama`, SentencePiece's BPE whose merges
follow from the scores of the tokens; `gemma4`, the same with merges in the file; `bert` and `t5`, of encoders
(`gguf_pieces`). The rules are those of the model's own `tokenizer.json`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, normalizers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from lullm.config.gguf.file import GGUFFile, read_gguf
from lullm.errors import ModelLoadError
from lullm.log import get_logger
from lullm.text.token_bytes import check_lengths
from lullm.text.vocabulary.added import surround
from lullm.text.vocabulary.byte_pairs import pair
from lullm.text.vocabulary.cut import CL100K, CONTRACTIONS, KIMI, O200K, Cut, byte_level
from lullm.text.vocabulary.gguf_pieces import spelled, unigram, with_mask, word_pieces

logger = get_logger(__name__)

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens."""
_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "seperator": "sep_token",
          "padding": "pad_token", "cls": "cls_token", "mask": "mask_token"}  # fmt: skip
"""The file's own spelling."""

_WITH_MARKS = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK = (
    r"\p{N}{1,3}",
    "[一-龥\u3040-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
)
_LLAMA3 = CL100K % "{1,3}"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_THREE_DIGITS = "[0-9]{3}"
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", _THREE_DIGITS)
"""llama.cpp's default for files that name none; no model has it."""
_FALCON = (r"[\p{P}$+<=>^~|`]+", _GPT2, _THREE_DIGITS)
_BLOOM = " ?[^(\\s|.,!?…。，、।۔،)]+"
_EXAONE_MOE = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|"
    r"\s+(?!\S)|\s+"
)
_STARTS_WITH_BOS = dict.fromkeys(
    ("falcon-h1", "falcon3", "lfm2", "llama-bpe", "llama-v3", "llama3", "pixtral"), Cut((_LLAMA3,), whole_words=True)
) | {"tekken": Cut((O200K % {"end": "", "digits": ""},), whole_words=True)}
_OF_PAIRS = {"roberta-bpe": 2, "modern-bert": 1}
"""Tokenizers of encoders: how many marks stand between the texts of a pair."""
_CUTS: dict[str, Cut] = {
    "default": Cut(_DEFAULT),
    **dict.fromkeys(("exaone4", "gpt-2", "phi-2", "roberta-bpe"), Cut()),
    **dict.fromkeys(("modern-bert", "mpt", "olmo"), Cut(composed=True)),
    **dict.fromkeys(("codeshell", "exaone", "refact", "smollm", "starcoder"), Cut(digit_by_digit=True)),
    "bloom": Cut((_BLOOM,)),
    "exaone-moe": Cut((_EXAONE_MOE,)),
    "falcon": Cut(_FALCON),
    "command-r": Cut(digit_by_digit=True, composed=True),
    **dict.fromkeys(("chatglm-bpe", "dbrx", "glm4", "smaug-bpe"), Cut((_LLAMA3,))),
    **_STARTS_WITH_BOS,
    **dict.fromkeys(("deepseek-r1-qwen", "qwen2"), Cut((CL100K % "",), composed=True)),
    **dict.fromkeys(("hunyuan", "solar-open", "stablelm2"), Cut((CL100K % "",))),
    "qwen35": Cut((_WITH_MARKS,), composed=True),
    **dict.fromkeys(("gpt-4o", "llama4", "minimax-m2"), Cut((O200K % {"end": CONTRACTIONS + "?", "digits": "{1,3}"},))),
    "kimi-k2": Cut((KIMI,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense"), Cut(_DEEPSEEK)),
    "seed-coder": Cut((_SEED,)),
}
"""By `tokenizer.ggml.pre`."""
_OF_OLDER = {
    **dict.fromkeys(("gpt2", "phi2"), "gpt-2"), **dict.fromkeys(("starcoder", "starcoder2"), "starcoder"),
    **dict.fromkeys(("gptneox", "mamba", "mpt"), "mpt"), **dict.fromkeys(("qwen2", "qwen2moe"), "qwen2"),
    "bloom": "bloom", "command-r": "command-r", "exaone": "exaone", "falcon": "falcon", "olmo": "olmo",
}  # fmt: skip
"""By architecture: for files written before this key existed."""
_SPACE = "▁"


def read_tokenizer_gguf(path: Path) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The library's tokenizer, special tokens by role, and chat templates by name, as from `read_tokenizer`.

    Blocks on the disk; half a second for a large vocabulary.

    Raises:
        ModelLoadError: the file describes no tokenizer, one of another kind, or an impossible one.
    """
    file = read_gguf(path)
    kind, tokens = file.text(_PREFIX + "model"), _tokens(file)
    types = _types(file, tokens)
    if kind == "bert":
        tokens = spelled(tokens, types)
    elif kind == "t5":
        tokens, types = with_mask(file, tokens, types)
    if kind not in _BACKENDS:
        raise ModelLoadError(
            f"{path}: tokenizer.ggml.model {kind!r} is not supported, only {', '.join(_BACKENDS)}; pass the folder "
            "of the model's own tokenizer (tokenizer=...)"
        )
    try:
        backend = _BACKENDS[kind](file, tokens, types)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception for merges that are not in the vocabulary
        raise ModelLoadError(f"{path}: the vocabulary and its merges are no tokenizer: {error}") from None
    roles = _special_tokens(file, tokens)
    _add_tokens(backend, tokens, types, None if kind == "bert" else roles.get("mask_token"))
    _surround(backend, file, kind, tokens)
    return backend, roles, _templates(file)


def _tokens(file: GGUFFile) -> list[str]:
    tokens = file.metadata.get(_PREFIX + "tokens")
    if not isinstance(tokens, Sequence) or not len(tokens) or not isinstance(tokens[0], str):
        raise ModelLoadError(f"{file.path} has no vocabulary (tokenizer.ggml.tokens)")
    return list(tokens)


def _types(file: GGUFFile, tokens: list[str]) -> Sequence[int]:
    types = file.metadata.get(_PREFIX + "token_type")
    if types is None:
        return [1] * len(tokens)
    return _as_long(file, "token_type", types, tokens)


def _as_long(file: GGUFFile, key: str, values: Any, tokens: list[str]) -> Sequence[Any]:
    if isinstance(values, str) or not isinstance(values, Sequence) or len(values) != len(tokens):
        raise ModelLoadError(f"{file.path}: {_PREFIX}{key} must be an array, as long as the vocabulary")
    return values


def _byte_level(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> Backend:
    pre = file.metadata.get(_PREFIX + "pre")
    if pre is None:
        pre = _OF_OLDER.get(file.architecture, "default")
        logger.warning(
            "%s has no tokenizer.ggml.pre: texts are cut into words as for %r; a newer copy of the file says it",
            file.path,
            pre,
        )
    if not isinstance(pre, str) or pre not in _CUTS:
        raise ModelLoadError(
            f"{file.path}: tokenizer.ggml.pre {pre!r} is not supported, only {', '.join(_CUTS)}; pass the folder of "
            "the model's own tokenizer (tokenizer=...)"
        )
    return byte_level({token: number for number, token in enumerate(tokens)}, _stored_merges(file), _CUTS[pre])


def _sentence_piece(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> Backend:
    scores = _as_long(file, "scores", file.metadata.get(_PREFIX + "scores"), tokens)
    check_lengths(tokens, str(file.path))
    vocab = {token: number for number, token in enumerate(tokens)}
    has_prefix = bool(file.metadata.get(_PREFIX + "add_space_prefix", True))
    return _pieces(tokens, types, _merges(vocab, tokens, scores), has_prefix)


def _gemma4(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> Backend:
    return _pieces(tokens, types, _stored_merges(file), has_prefix=False)


def _unigram(file: GGUFFile, tokens: list[str], types: Sequence[int]) -> Backend:
    scores = _as_long(file, "scores", file.metadata.get(_PREFIX + "scores"), _tokens(file))
    return unigram(file, tokens, types, scores[: len(tokens)])


def _stored_merges(file: GGUFFile) -> list[tuple[str, str]]:
    stored = file.metadata.get(_PREFIX + "merges", ())
    return [pair(merge, _PREFIX + "merges") for merge in stored] if not isinstance(stored, str) else []


def _pieces(tokens: list[str], types: Sequence[int], merges: list[tuple[str, str]], has_prefix: bool) -> Backend:
    """`has_prefix`: whether every text gets a space before it."""
    vocab = {token: number for number, token in enumerate(tokens)}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    has_bytes = all(f"<0x{byte:02X}>" in vocab for byte in range(256))
    backend = Backend(BPE(vocab=vocab, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=has_bytes))
    replaced = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replaced]) if has_prefix else replaced
    steps: list[Any] = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if has_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges(vocab: dict[str, int], tokens: list[str], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs that make a token, the best token first: SentencePiece joins by the score of the result."""
    found = []
    for token, score in zip(tokens, scores, strict=True):
        pairs = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [(vocab[left], vocab[right], left, right) for left, right in pairs if left in vocab and right in vocab]
        found += [(-score, -len(left), -len(right), left, right) for _, _, left, right in sorted(known)]
    found.sort(key=lambda each: each[:3])
    return [(left, right) for *_, left, right in found]


def _add_tokens(backend: Backend, tokens: list[str], types: Sequence[int], mask: str | None) -> None:
    """`mask`: of encoders; it takes the spaces before it."""
    kinds = list(zip(tokens, types, strict=True))
    special = [token for token, kind in kinds if kind in (_CONTROL, _UNKNOWN)]
    own = [token for token, kind in kinds if kind == _USER_DEFINED]
    backend.add_special_tokens(
        [AddedToken(token, special=True, normalized=False, lstrip=token == mask) for token in special if token]
    )
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in own if token])


def _token_of(file: GGUFFile, tokens: list[str], role: str) -> str | None:
    number = file.metadata.get(f"{_PREFIX}{role}_token_id")
    if number is None:
        return None
    if not isinstance(number, int) or not 0 <= number < len(tokens):
        raise ModelLoadError(f"{file.path}: {_PREFIX}{role}_token_id {number!r} is not in the vocabulary")
    return tokens[number]


def _special_tokens(file: GGUFFile, tokens: list[str]) -> dict[str, str]:
    found = {name: _token_of(file, tokens, role) for role, name in _ROLES.items()}
    return {name: token for name, token in found.items() if token is not None}


def _surround(backend: Backend, file: GGUFFile, kind: str, tokens: list[str]) -> None:
    """Add the tokens around a text that the file asks for."""
    pre = file.metadata.get(_PREFIX + "pre", "default")
    first, last = (_token_of(file, tokens, role) for role in ("bos", "eos"))
    between = None
    if kind == "bert":
        first = _token_of(file, tokens, "cls") or first or "[CLS]"
        last = _token_of(file, tokens, "seperator") or last or "[SEP]"
        if first not in tokens or last not in tokens:
            raise ModelLoadError(f"{file.path} has no tokens around a text (cls_token_id, seperator_token_id)")
        between = [last]
    elif last and (kind == "t5" or pre in _OF_PAIRS):
        between = [last] * _OF_PAIRS.get(pre, 2)
    starts = file.metadata.get(_PREFIX + "add_bos_token", kind != "gpt2" or pre in _STARTS_WITH_BOS or pre in _OF_PAIRS)
    ends = file.metadata.get(_PREFIX + "add_eos_token", kind == "t5" or pre in _OF_PAIRS and starts)
    if kind == "bert":
        starts = ends = True
    surround(backend, [first if starts else None], [last if ends else None], kind == "gpt2", between)


def _templates(file: GGUFFile) -> dict[str, str]:
    key = "tokenizer.chat_template"
    sources: dict[str, str] = {}
    for name, value in file.metadata.items():
        if name == key or name.startswith(key + "."):
            if not isinstance(value, str):
                raise ModelLoadError(f"{file.path}: {name} must be a string")
            sources[name.removeprefix(key).removeprefix(".") or "default"] = value
    return sources


_BACKENDS = {
    "gpt2": _byte_level, "llama": _sentence_piece, "gemma4": _gemma4, "bert": word_pieces, "t5": _unigram,
}  # fmt: skip
"""By `tokenizer.ggml.model`."""
