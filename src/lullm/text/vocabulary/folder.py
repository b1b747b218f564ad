"""Tokenizer files: what a model folder says about its tokenizer.

tokenizer.json (rules, vocabulary, tokens around a text), tokenizer_config.json and special_tokens_map.json (special
tokens and their roles), and the chat templates from any of their usual places. The config's `add_bos_token` is ignored
if there is a tokenizer.json, as in transformers 5.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend

from lullm.config.json_file import given_path, optional_object, read_text
from lullm.errors import ModelLoadError
from lullm.text.vocabulary import byte_pairs, sentence_piece, tekken, tiktoken
from lullm.text.vocabulary.added import add_declared, mark_special
from lullm.units import MIB

_LARGEST_TOKENIZER = 256 * MIB
"""The largest known tokenizer.json, of 262,144 tokens, takes 33 MB."""
_TRIAL_TEXTS = ("The quick fox, 123 and é中.\n", "a" * 64, "1" * 64, " " * 64, "\n" * 64)
"""Regular expressions backtrack on runs of one character."""
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def read_tokenizer(folder: Path) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The library's tokenizer, special tokens by role, and chat templates by name. Blocks on the disk.

    Raises:
        ModelLoadError: a file is missing, damaged, or contradicts another.
    """
    config = optional_object(folder / "tokenizer_config.json")
    named = optional_object(folder / "special_tokens_map.json") | config
    backend, roles, own_templates = _load_backend(folder, named)
    special_tokens = roles | _special_tokens(named)
    _add_tokens(backend, config, special_tokens)
    return backend, special_tokens, _chat_template_sources(folder, config) or own_templates


def reraise_foreign(error: BaseException) -> None:
    """Re-raise errors that say nothing of the file: a lack of memory, and what is no Exception, such as Ctrl-C.

    A panic is a BaseException whose class cannot be imported; no handler of Exception catches it.
    """
    is_panic = type(error).__name__ == "PanicException"
    if isinstance(error, MemoryError) or not (is_panic or isinstance(error, Exception)):
        raise error


def _read_model(path: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """A tokenizer.model, of SentencePiece or tiktoken."""
    read = tiktoken.read_tiktoken if tiktoken.is_tiktoken(path) else sentence_piece.read_sentence_piece
    return read(path, config)


_FORMS = {
    tekken.FILE: tekken.read_tekken,
    **dict.fromkeys(tiktoken.FILES, tiktoken.read_tiktoken),
    sentence_piece.FILE: _read_model,
    byte_pairs.FILE: byte_pairs.read_byte_pairs,
}
"""Pattern of a file's name -> its reader."""


def _load_backend(folder: Path, config: dict[str, Any]) -> tuple[Backend, dict[str, str], dict[str, str]]:
    """The backend from tokenizer.json, or the first of `_FORMS`; special tokens and chat templates of that file."""
    path = folder / "tokenizer.json"
    if not folder.is_dir():
        raise ModelLoadError(f"there is no model folder {folder}")
    if not path.is_file():
        for pattern, read in _FORMS.items():
            if found := sorted(file for file in folder.glob(pattern) if file.is_file()):
                return read(found[0], config)
        raise ModelLoadError(
            f"{folder} has no tokenizer.json; a model folder holds config.json, tokenizer.json, "
            "tokenizer_config.json and *.safetensors"
        )
    try:
        backend = Backend.from_str(read_text(path, _LARGEST_TOKENIZER))
    except ModelLoadError:
        raise
    except BaseException as error:  # the library raises bare Exception for whatever is wrong with the file
        reraise_foreign(error)
        raise ModelLoadError(f"{path} is not a tokenizer that the `tokenizers` library can read: {error}") from None
    _try_rules(backend, path)
    return backend, {}, {}


def _try_rules(backend: Backend, path: Path) -> None:
    """Use each regular expression of the rules on short texts. Raises ModelLoadError: one panics."""
    try:
        if backend.decoder is not None:
            backend.decoder.decode(list(_TRIAL_TEXTS))
        backend.encode_batch_fast(list(_TRIAL_TEXTS))
    except Exception:  # a small vocabulary may lack the characters
        return
    except BaseException as error:
        reraise_foreign(error)
        raise ModelLoadError(f"{path} has rules that fail on plain text: {error}") from None


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
    """Add the added and special tokens that only tokenizer_config.json declares to `backend`."""
    add_declared(backend, config.get("added_tokens_decoder") or {})
    extra = [config.get(name) for name in ("additional_special_tokens", "extra_special_tokens")]
    listed = [_content(token, "special token") for tokens in extra if isinstance(tokens, list) for token in tokens]
    mark_special(backend, [*special_tokens.values(), *listed])


def read_chat_template(given: str) -> str:
    """The template of an option: a file's, or the option itself. Raises ModelLoadError: no file, or an empty one."""
    if any(mark in given for mark in "{}\n"):  # as vLLM distinguishes them
        return given
    if not given:  # the path of the current folder
        raise ModelLoadError("chat_template is an empty text; give a file or a template, or leave it out")
    try:
        text = read_text(given_path(given))
    except FileNotFoundError:
        raise ModelLoadError(f"chat_template: the file {given} does not exist, and a template has braces") from None
    except ModelLoadError as error:
        raise ModelLoadError(f"chat_template: {error}; give a file with a template, or the template itself") from None
    if not text.strip():
        raise ModelLoadError(f"chat_template: the file {given} is empty; give one with a template, or leave it out")
    return text


def _chat_template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Name -> source of the folder's templates: chat_template.jinja, else the tokenizer's or processor's config."""
    sources: dict[str, str] = {}
    for file, value in (
        ("chat_template.json", optional_object(folder / "chat_template.json").get("chat_template")),
        ("tokenizer_config.json", config.get("chat_template")),
    ):
        sources |= _stated_templates(value, file)
    files = {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    if (folder / "chat_template.jinja").exists():
        files["default"] = folder / "chat_template.jinja"
    for name, path in files.items():
        try:
            sources[name] = read_text(path)
        except FileNotFoundError as error:  # a dangling link
            raise ModelLoadError(f"{path} cannot be read: {error}") from None
    return sources


def _stated_templates(value: Any, file: str) -> dict[str, str]:
    """Name -> source, of the value of a `chat_template`."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if not isinstance(value, list):
        raise ModelLoadError(f"{file}: chat_template must be a string or a list")
    for entry in value:
        if not isinstance(entry, dict) or not all(isinstance(entry.get(k), str) for k in ("name", "template")):
            raise ModelLoadError(f"{file}: chat_template must list objects with name and template")
    return {entry["name"]: entry["template"] for entry in value}
