"""Vocabularies in tiktoken's file format (https://github.com/openai/tiktoken): lines of a token in base64 and its rank.

How a text is cut into words, and the special tokens behind the ranks, are in the code of a family: Qwen 1
(qwen.tiktoken), Kimi and Moonlight (tiktoken.model), and GLM-4-9B as first released (tokenizer.model).
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lullm.config.json_file import optional_object, read_content, read_text
from lullm.errors import ModelLoadError
from lullm.text.token_bytes import check_lengths
from lullm.text.vocabulary.added import added_token, surround
from lullm.text.vocabulary.cut import CL100K, KIMI, Cut
from lullm.text.vocabulary.ranks import ranked
from lullm.units import MIB

FILES = ("*.tiktoken", "tiktoken.model")
_LARGEST = 64 * MIB
"""The largest known, of 163,584 tokens, takes 3 MB."""
_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?(\n|$)")

_END = "<|endoftext|>"
_QWEN_MARKS = ("<|im_start|>", "<|im_end|>")
_QWEN_TOKENS = (_END, *_QWEN_MARKS, *(f"<|extra_{number}|>" for number in range(205)))
_QWEN_CHAT = """\
{%- if not messages or messages[0]['role'] != 'system' -%}
{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}
{%- endif -%}
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\n' }}
{%- endif -%}
"""
"""As the code of Qwen's repositories writes a conversation; their files have no template."""
_GLM4_TOKENS = (
    _END, "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>", "<|begin_of_image|>", "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>",
)  # fmt: skip
_KIMI_RESERVED = 256


@dataclass(frozen=True, slots=True)
class _Class:
    """A class of tokenizers: facts that the files leave out.

    Attributes:
        added: (number of ranks, tokenizer_config.json) -> tokens behind the ranks, by id.
        roles: special tokens where the config names no others.
        before: tokens before every text.
        chat: (special tokens by role, chat template) of a folder for conversations; None: its files say both.
    """

    cut: Cut
    added: Callable[[int, Mapping[str, Any]], dict[int, AddedToken]]
    roles: Mapping[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    chat: tuple[dict[str, str], str] | None = None


def _in_a_row(tokens: tuple[str, ...]) -> Callable[[int, Mapping[str, Any]], dict[int, AddedToken]]:
    return lambda start, _: {start + at: _special(token) for at, token in enumerate(tokens)}


def _of_kimi(start: int, config: Mapping[str, Any]) -> dict[int, AddedToken]:
    """The tokens that the config declares, and names for the other ids that are reserved for such tokens."""
    declared = config.get("added_tokens_decoder") or {}
    ids = range(start, start + _KIMI_RESERVED)
    stated = {number: declared.get(str(number)) for number in ids}
    return {
        number: _special(f"<|reserved_token_{number}|>") if entry is None else added_token(entry)
        for number, entry in stated.items()
    }


def _special(token: str) -> AddedToken:
    return AddedToken(token, special=True, normalized=False)


_CLASSES = {
    "QWenTokenizer": _Class(
        Cut((CL100K % "",), composed=True),
        _in_a_row(_QWEN_TOKENS),
        roles={"eos_token": _END, "pad_token": _END},
        chat=({"eos_token": "<|im_end|>"}, _QWEN_CHAT),
    ),
    "TikTokenTokenizer": _Class(Cut((KIMI,)), _of_kimi, roles={"bos_token": "[BOS]", "eos_token": "[EOS]"}),
    "ChatGLM4Tokenizer": _Class(
        Cut((CL100K % "{1,3}",)),
        _in_a_row(_GLM4_TOKENS),
        roles={"eos_token": _END, "pad_token": _END},
        before=("[gMASK]", "<sop>"),
    ),
}
_BY_FILE = {"qwen.tiktoken": "QWenTokenizer", "tiktoken.model": "TikTokenTokenizer"}
"""Where tokenizer_config.json names no class."""


def is_tiktoken(path: Path) -> bool:
    """Whether a file begins as these do: a `tokenizer.model` may be SentencePiece's. Raises as `read_content`."""
    return _LINE.match(read_content(path, _LARGEST)[:1024]) is not None


def read_tiktoken(path: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend of a vocabulary, special tokens by role, and its chat template.

    `config`: of tokenizer_config.json.

    Raises:
        ModelLoadError: the file is damaged, or the class of the tokenizer is another.
    """
    known = _class_of(path, config)
    words = _words(path)
    try:
        added = known.added(len(words), config)
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelLoadError(f"tokenizer_config.json: the added tokens are damaged: {error!r}") from None
    backend = ranked(words, added, known.cut)
    contents = {token.content for token in added.values()}
    surround(backend, known.before, [], has_bytes=True)
    roles, templates = {role: token for role, token in known.roles.items() if token in contents}, {}
    if known.chat is not None and _chats(path.parent):
        roles, templates = roles | known.chat[0], {"default": known.chat[1]}
    return backend, roles, templates


def _chats(folder: Path) -> bool:
    """Whether Qwen's code would hold a conversation with the model."""
    return optional_object(folder / "generation_config.json").get("chat_format") == "chatml"


def _class_of(path: Path, config: Mapping[str, Any]) -> _Class:
    """The class by tokenizer_config.json, else by the file's name. Raises ModelLoadError."""
    name = config.get("tokenizer_class") or _BY_FILE.get(path.name)
    found = _CLASSES.get(str(name))
    if found is None:
        said = f"its tokenizer_class {name} is not" if name else "no file names its tokenizer_class, which must be"
        raise ModelLoadError(
            f"{path} is a vocabulary of tiktoken's and there is no tokenizer.json, and {said} one of "
            f"{', '.join(_CLASSES)}; let transformers write one (AutoTokenizer.from_pretrained(...).save_pretrained("
            "FOLDER)) and pass it as tokenizer=FOLDER, or take a newer copy of the model"
        )
    if config.get("extra_vocab_file") is not None:
        raise ModelLoadError(
            "tokenizer_config.json: extra_vocab_file (tokens beside those of qwen.tiktoken) is not supported; let "
            "transformers write a tokenizer.json and pass it as tokenizer=FOLDER"
        )
    return found


def _words(path: Path) -> dict[bytes, int]:
    """Id by token, in the order of the ids. Raises ModelLoadError."""
    try:
        pairs = [line.split() for line in read_text(path, _LARGEST).splitlines() if line]
        words = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except (ValueError, binascii.Error) as error:
        raise ModelLoadError(f"{path} is damaged: {error}; fetch the model again") from None
    check_lengths(words, str(path))
    if sorted(words.values()) != list(range(len(pairs))) or not all(bytes([byte]) in words for byte in range(256)):
        raise ModelLoadError(
            f"{path} is damaged: its tokens must be different, with ranks from 0 on, and the 256 bytes among them; "
            "fetch the model again"
        )
    return words
