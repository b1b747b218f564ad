"""Byte-level BPE (GPT-2's, https://cdn.openai.com/better-language-models): vocab.json and merges.txt as a backend.

Folders of OPT, GPT-2 and the first Qwen2 have no tokenizer.json. The rest of a tokenizer is in the class that
transformers names for it: how a text is cut into words, and its special tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lullm.config.field import boolean
from lullm.config.json_file import optional_object, read_object, read_text
from lullm.errors import ModelLoadError
from lullm.text.vocabulary.added import add_declared, added_token, surround
from lullm.text.vocabulary.cut import CL100K, Cut, byte_level
from lullm.units import MIB

FILE = "vocab.json"
_MERGES = "merges.txt"
_ADDED = "added_tokens.json"
_LARGEST = 64 * MIB
"""The largest known, of 152,000 tokens, takes 3 MB."""


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of transformers: facts that the files leave out.

    Attributes:
        roles: special tokens where the config names no others.
        is_surrounded: `cls_token` and `sep_token` always stand around a text.
    """

    regexes: tuple[str, ...] = ()
    composed: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    is_surrounded: bool = False


_END = "<|endoftext|>"
_CLASSES = {
    "GPT2Tokenizer": _Class(roles={"unk_token": _END, "bos_token": _END, "eos_token": _END}),
    "Qwen2Tokenizer": _Class((CL100K % "",), True, {"unk_token": _END, "eos_token": _END, "pad_token": _END}),
    "RobertaTokenizer": _Class(
        roles={"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
               "pad_token": "<pad>", "mask_token": "<mask>"},
        is_surrounded=True,
    ),
}  # fmt: skip
_BY_MODEL_TYPE = dict.fromkeys(("codegen", "gpt2", "gpt_neo", "gptj", "opt", "starcoder2"), "GPT2Tokenizer")
_BY_MODEL_TYPE |= dict.fromkeys(("qwen2", "qwen2_moe", "qwen3"), "Qwen2Tokenizer") | {"roberta": "RobertaTokenizer"}
"""Where no file names a class, as in the first folders of GPT-2."""


def pair(merge: str, where: str) -> tuple[str, str]:
    """The two tokens that a merge joins. Raises ModelLoadError: they are not two."""
    left, space, right = merge.partition(" ")
    if not space or not left or not right:
        raise ModelLoadError(f"{where}: {merge!r} is no pair of tokens")
    return left, right


def read_byte_pairs(path: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend of `path`, a vocab.json, and merges.txt beside it, special tokens by role, and no chat template.

    Args:
        config: of tokenizer_config.json and special_tokens_map.json.

    Raises:
        ModelLoadError: a file is missing or damaged, or the class of the tokenizer is another.
    """
    folder = path.parent
    known = _class_of(folder, config)
    cut = Cut(known.regexes, composed=known.composed, space_before=boolean(config, "add_prefix_space", False))
    vocab = read_object(path, _LARGEST)
    try:
        backend = byte_level(vocab, _read_merges(folder / _MERGES), cut)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises bare Exception for merges that are not in the vocabulary
        raise ModelLoadError(f"{folder}: {FILE} and {_MERGES} are no tokenizer: {error}") from None
    roles = _add_tokens(backend, folder, config, known.roles)
    _surround(backend, config, roles, known.is_surrounded)
    return backend, roles, {}


def _add_tokens(backend: Backend, folder: Path, config: dict[str, Any], known: Mapping[str, str]) -> dict[str, str]:
    """Add all special and added tokens to `backend`, in the order of transformers. Returns those with a role."""
    roles = {name: config.get(name, token) for name, token in known.items()} | {
        name: value for name, value in config.items() if name.endswith("_token") and not isinstance(value, bool)
    }
    tokens = {name: _special(token, name) for name, token in roles.items() if token is not None}
    add_declared(backend, *_declared(folder, config, {token.content for token in tokens.values()}))
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    listed = [_special(token, "special token") for token in _listed(config)]
    backend.add_special_tokens([token for token in (*tokens.values(), *listed) if token.content not in present])
    return {name: token.content for name, token in tokens.items()}


def _class_of(folder: Path, config: dict[str, Any]) -> _Class:
    """The class by tokenizer_config.json, else by config.json. Raises ModelLoadError: it is none of `_CLASSES`."""
    model = optional_object(folder / "config.json")
    stated = config.get("tokenizer_class") or model.get("tokenizer_class")
    name = stated or _BY_MODEL_TYPE.get(str(model.get("model_type")))
    found = _CLASSES.get(str(name).removesuffix("Fast"))
    if found is None:
        said = f"its tokenizer_class {name} is not" if name else "no file names its tokenizer_class, which must be"
        raise ModelLoadError(
            f"{folder} has its tokenizer as {FILE} and no tokenizer.json, and {said} one of {', '.join(_CLASSES)}; let "
            "transformers write one (AutoTokenizer.from_pretrained(...).save_pretrained(FOLDER)) and pass it as "
            "tokenizer=FOLDER, or take a newer copy of the model"
        )
    return found


def _read_merges(path: Path) -> list[tuple[str, str]]:
    try:
        lines = read_text(path, _LARGEST).split("\n")  # not splitlines: tokens may have other ends of lines
    except FileNotFoundError:
        raise ModelLoadError(
            f"{path.parent} has its tokenizer as {FILE}, which belongs to a {_MERGES} that is not there; fetch the "
            "model again (`lullm pull NAME`), or pass tokenizer=FOLDER"
        ) from None
    lines = [line.removesuffix("\r") for line in lines]
    return [pair(line, str(path)) for line in lines if line and not line.startswith("#version")]


def _special(token: Any, name: str) -> AddedToken:
    """A special token from the config: a text, or an object with flags. Raises ModelLoadError."""
    try:
        if isinstance(token, dict):
            return added_token(token | {"special": True})
        return AddedToken(token, special=True, normalized=False)
    except (KeyError, TypeError):
        raise ModelLoadError(f"tokenizer_config.json: {name} must be a token, not {token!r}") from None


def _listed(config: dict[str, Any]) -> list[Any]:
    """Special tokens without a role."""
    lists = (config.get(name) for name in ("additional_special_tokens", "extra_special_tokens"))
    return [token for tokens in lists if isinstance(tokens, list) for token in tokens]


def _declared(folder: Path, config: dict[str, Any], special: set[str]) -> tuple[Any, str]:
    """Id -> token, from `added_tokens_decoder` or added_tokens.json, which has ids by text; and the file's name."""
    if config.get("added_tokens_decoder"):
        return config["added_tokens_decoder"], "tokenizer_config.json"
    declared = {
        number: {"content": content, "special": content in special, "normalized": content not in special}
        for content, number in optional_object(folder / _ADDED).items()
    }
    return declared, _ADDED


def _surround(backend: Backend, config: dict[str, Any], roles: Mapping[str, str], always: bool) -> None:
    """Add the tokens around a text that the class or the config asks for."""
    if always:
        before, after = roles.get("cls_token"), roles.get("sep_token")
    else:
        before = roles.get("bos_token") if boolean(config, "add_bos_token", False) else None
        after = roles.get("eos_token") if boolean(config, "add_eos_token", False) else None
    surround(backend, [before], [after], has_bytes=True)
