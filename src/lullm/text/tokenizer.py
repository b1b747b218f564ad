"""Tokenizer: a model folder's tokenizer, on the `tokenizers` library.

Reads tokenizer.json (rules, vocabulary, tokens around a text), tokenizer_config.json and special_tokens_map.json
(special tokens and their roles), and the chat template from any of its usual places. The config's `add_bos_token` is
ignored if there is a tokenizer.json, as in transformers 5.
"""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lullm.config.json_file import read_object, read_text
from lullm.errors import InvalidRequestError, ModelLoadError
from lullm.log import get_logger
from lullm.text.chat_template import ChatTemplate
from lullm.text.token_bytes import TokenBytes
from lullm.text.verbatim import Verbatim
from lullm.units import MIB

logger = get_logger(__name__)

_LARGEST_TOKENIZER = 256 * MIB
"""The largest known tokenizer.json, of 262,144 tokens, takes 33 MB."""
_TRIAL_TEXTS = ("The quick fox, 123 and é中.\n", "a" * 64, "1" * 64, " " * 64, "\n" * 64)
"""Runs of one character are what regular expressions backtrack on."""

_SOME_TEXT = "a"

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Tokenizer:
    """Text <-> token ids. Nothing changes after construction, so several threads may share one.

    Attributes:
        backend: the library's tokenizer; without truncation and padding.
        vocab_size: the largest token id + 1. A model's own `vocab_size` may be larger (padding of the matrix).
        bos_token_id, eos_token_id: None where the model names none.
        special_tokens: name -> text (`{"eos_token": "</s>"}`), as chat templates use them.
        special_token_ids: marks (`</s>`, `<|im_end|>`, ...) that are no text; `skip_special_tokens` drops them.
        chat_template: None where the folder has none.
        token_bytes: each token's bytes.
        verbatim: special tokens that a caller spells.
    """

    def __init__(
        self,
        backend: Backend,
        special_tokens: dict[str, str] | None = None,
        chat_template: ChatTemplate | None = None,
    ):
        """Takes ownership of `backend` and turns its truncation and padding off.

        Raises:
            ModelLoadError: an empty vocabulary, or a decoder that cannot be streamed.
        """
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.token_bytes = TokenBytes(backend)
        self.verbatim = Verbatim(backend)
        ids = backend.get_vocab(with_added_tokens=True).values()
        if not ids:
            raise ModelLoadError("tokenizer.json: the vocabulary is empty")
        self.vocab_size = max(ids) + 1
        added = backend.get_added_tokens_decoder()
        self.special_token_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.bos_token_id = self._named_token_id("bos_token")
        self.eos_token_id = self._named_token_id("eos_token")
        self._texts: dict[int, str] = {}

    @classmethod
    def from_folder(cls, folder: Path) -> "Tokenizer":
        """Read a model folder's tokenizer. Blocks on the disk; tenths of a second for a large vocabulary.

        Raises:
            ModelLoadError: a file is missing, damaged, or contradicts another.
        """
        backend = _load_backend(folder)
        config = _read_json(folder / "tokenizer_config.json")
        special_tokens = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
        _add_tokens(backend, config, special_tokens)
        sources = _chat_template_sources(folder, config)
        template = ChatTemplate(sources, special_tokens) if sources else None
        if template is not None:
            template.try_out()
        return cls(backend, special_tokens, template)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Blocks for about a second per 2 MB, with the interpreter lock released.

        Raises:
            InvalidRequestError: not a string, one with lone surrogates, or one that the vocabulary cannot spell.
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Token ids of each text; the library spreads them over the cores. Raises as `encode` does."""
        return _encode(self.backend, texts, add_special_tokens)

    def encode_as_text(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`, in which special tokens are text like any other. Raises as `encode` does.

        transformers calls it `split_special_tokens`. `add_special_tokens`: around the text, as `encode` adds them.
        """
        ids = self.verbatim.original_ids(_encode(self.verbatim.text_backend, [text], False)[0])
        if add_special_tokens:
            before, after = self._around
            ids = [*before, *ids, *after]
        return ids

    def encode_marked(self, text: str, mark: str) -> list[int]:
        """Token ids of a rendered text, in which marked special tokens (`Verbatim`) are text. Raises as `encode`."""
        _check_text(text)
        renamed = self.verbatim.renamed(text, mark)
        return self.verbatim.original_ids(_encode(self.verbatim.text_backend, [renamed], False)[0])

    @functools.cached_property
    def _around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `encode` puts before and behind a text."""
        bare, whole = (self.encode(_SOME_TEXT, add_special_tokens=added) for added in (False, True))
        start = next((n for n in range(len(whole)) if whole[n : n + len(bare)] == bare), len(whole))
        return whole[:start], whole[start + len(bare) :]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of `ids`; ids that no token has add nothing.

        Raises:
            InvalidRequestError: something in `ids` cannot be an id.
        """
        try:
            return self.backend.decode(list(ids), skip_special_tokens=skip_special_tokens)
        except (OverflowError, TypeError):
            raise InvalidRequestError("token ids must be integers from 0 to 2**32 - 1") from None

    def decode_token(self, token_id: int) -> str:
        """One token's text for log-probabilities: with its leading space, and U+FFFD for an incomplete character."""
        text = self._texts.get(token_id)
        if text is None:
            text = self.token_bytes.inner(token_id).decode(errors="replace")
            if text:
                self._texts[token_id] = text
        return text

    def _named_token_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        if token is None:
            return None
        token_id: int | None = self.backend.token_to_id(token)
        if token_id is None:
            logger.warning("the tokenizer names %r as its %s but has no such token", token, name)
        return token_id


def _encode(backend: Backend, texts: Sequence[str], add_special_tokens: bool) -> list[list[int]]:
    for text in texts:
        _check_text(text)
    # Not `backend.encode`: it holds the interpreter lock, and a long prompt would stall the other threads.
    try:
        encodings = backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
    except BaseException as error:  # such as a character that the vocabulary lacks
        _reraise_foreign(error)
        raise InvalidRequestError(f"the tokenizer cannot encode the text: {error}") from None
    return [encoding.ids for encoding in encodings]


def _check_text(text: str) -> None:
    if not isinstance(text, str):
        raise InvalidRequestError(f"a text to encode must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(
            f"the text is not valid Unicode: a lone surrogate at character {error.start}"
        ) from None


def _load_backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise ModelLoadError(f"there is no model folder {folder}")
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise ModelLoadError(
                f"{folder} has a sentencepiece tokenizer.model but no tokenizer.json, which lullm needs; convert it "
                "once with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        raise ModelLoadError(
            f"{folder} has no tokenizer.json; a model folder holds config.json, tokenizer.json, "
            "tokenizer_config.json and *.safetensors"
        )
    try:
        backend = Backend.from_str(read_text(path, _LARGEST_TOKENIZER))
    except ModelLoadError:
        raise
    except BaseException as error:  # the library raises bare Exception for whatever is wrong with the file
        _reraise_foreign(error)
        raise ModelLoadError(f"{path} is not a tokenizer that the `tokenizers` library can read: {error}") from None
    _try_rules(backend, path)
    return backend


def _try_rules(backend: Backend, path: Path) -> None:
    """Use each regular expression of the rules on short texts. Raises ModelLoadError: one panics."""
    try:
        if backend.decoder is not None:
            backend.decoder.decode(list(_TRIAL_TEXTS))
        backend.encode_batch_fast(list(_TRIAL_TEXTS))
    except Exception:  # a small vocabulary may lack the characters
        return
    except BaseException as error:
        _reraise_foreign(error)
        raise ModelLoadError(f"{path} has rules that fail on plain text: {error}") from None


def _reraise_foreign(error: BaseException) -> None:
    """Raise what is neither an Exception nor a panic of the library, such as Ctrl-C.

    A panic is a BaseException whose class cannot be imported; no handler of Exception catches it.
    """
    if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
        raise error


def _read_json(path: Path) -> dict[str, Any]:
    """The object in an optional file; empty without the file."""
    try:
        return read_object(path)
    except FileNotFoundError:
        return {}


def _content(token: Any, where: str) -> str:
    """A token's text; the files spell it as a string or as `{"content": ...}`."""
    content = token.get("content") if isinstance(token, dict) else token
    if not isinstance(content, str) or not content:
        raise ModelLoadError(f"tokenizer_config.json: {where} must be a token, not {token!r}")
    return content


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    tokens = {name: _content(config[name], name) for name in _NAMED_TOKENS if config.get(name) is not None}
    extra = config.get("extra_special_tokens")
    if isinstance(extra, dict):  # a model's own names: {"image_token": "<image>"}
        tokens |= {name: _content(token, name) for name, token in extra.items()}
    return tokens


def _add_tokens(backend: Backend, config: dict[str, Any], special_tokens: dict[str, str]) -> None:
    """Make `backend` know the added and special tokens that only tokenizer_config.json declares."""
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict):
        raise ModelLoadError("tokenizer_config.json: added_tokens_decoder must be an object")
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    try:
        entries = sorted((int(key), value) for key, value in declared.items() if value["content"] not in known)
        flags = ("single_word", "lstrip", "rstrip", "normalized", "special")
        for token_id, entry in entries:
            content = entry["content"]
            backend.add_tokens([AddedToken(content, **{flag: bool(entry.get(flag)) for flag in flags})])
            if backend.token_to_id(content) != token_id:
                raise ModelLoadError(
                    f"tokenizer_config.json gives {content!r} the id {token_id}, but by tokenizer.json it would be "
                    f"{backend.token_to_id(content)}: the two files do not belong together"
                )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelLoadError(f"tokenizer_config.json: added_tokens_decoder is damaged: {error!r}") from None
    # A token of the vocabulary that is named special is one, whatever tokenizer.json calls it; its id stays.
    extra = [config.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    listed = [_content(token, "special token") for tokens in extra if isinstance(tokens, list) for token in tokens]
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for content in dict.fromkeys([*special_tokens.values(), *listed]):
        if content not in special and backend.token_to_id(content) is not None:
            backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])


def _chat_template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name -> source of the folder's templates. A file chat_template.jinja goes before the config's entry."""
    value = config.get("chat_template")
    sources: dict[str, str] = {}
    if isinstance(value, str):
        sources["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("name", "template")):
                raise ModelLoadError("tokenizer_config.json: chat_template must list objects with name and template")
            sources[entry["name"]] = entry["template"]
    elif value is not None:
        raise ModelLoadError("tokenizer_config.json: chat_template must be a string or a list")
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files["default"] = folder / "chat_template.jinja"
    for name, path in files.items():
        try:
            sources[name] = read_text(path)
        except FileNotFoundError as error:  # a link to nowhere
            raise ModelLoadError(f"{path} cannot be read: {error}") from None
    return sources
