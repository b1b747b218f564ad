"""The forms of a caller's prompt: a text, token ids, or a dict with one of them and more."""

from collections.abc import Sequence

from lullm.engine.rows.embeds import FIELD as EMBEDS
from lullm.errors import InvalidRequestError
from lullm.types.request import Conversation, Input, Prompt, TextPair
from lullm.types.sampling_params import integers
from lullm.types.vision.tile import TilePlace

_PROMPT_KEYS = (
    *("prompt", "prompt_token_ids", "split_special_tokens", "add_special_tokens", "cache_salt", "suffix"),
    *("multi_modal_data", "mm_processor_kwargs", EMBEDS),
)


def prompt_field(prompt: Input) -> str:
    """The field of a request that holds the prompt."""
    if isinstance(prompt, dict) and prompt.get(EMBEDS) is not None:
        return EMBEDS
    return {Conversation: "messages", TextPair: "document"}.get(type(prompt), "prompt")


def text_or_ids(prompt: Prompt) -> tuple[str | None, list[int] | None, bool | None]:
    """A caller's text and token ids, at least one of them; and whether special tokens in the text are plain text.

    Raises InvalidRequestError: not a prompt.
    """
    if isinstance(prompt, str):
        return prompt, None, None
    if not isinstance(prompt, dict):
        return None, _integers(prompt), None
    unknown = sorted(str(key) for key, value in prompt.items() if key not in _PROMPT_KEYS and value is not None)
    if unknown:
        raise InvalidRequestError(f"a prompt dict holds {', '.join(_PROMPT_KEYS)}, not {', '.join(unknown)}", "prompt")
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise InvalidRequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'; it has neither", "prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"prompt must be a string, not {type(text).__name__}", "prompt")
    splits = prompt.get("split_special_tokens")
    if splits is not None and (not isinstance(splits, bool) or ids is not None):
        raise InvalidRequestError("split_special_tokens is True or False, and belongs to a prompt of text", "prompt")
    return text, None if ids is None else _integers(ids), splits


def adds_special_tokens(prompt: Prompt) -> bool | None:
    """Whether the tokenizer puts its special tokens around a text; None: the caller does not say.

    Raises InvalidRequestError: it is no boolean, or the prompt is no text alone.
    """
    if not isinstance(prompt, dict) or (adds := prompt.get("add_special_tokens")) is None:
        return None
    is_text_alone = prompt.get("prompt") is not None and prompt.get("suffix") is None
    if not isinstance(adds, bool) or not is_text_alone:
        raise InvalidRequestError(
            "add_special_tokens is True or False, and belongs to a prompt of text without a suffix",
            "add_special_tokens",
        )
    return adds


def truncated(ids: list[int], num_kept: int, num_most: int, tiles: Sequence[TilePlace]) -> list[int]:
    """The last `num_kept` tokens, or `num_most` if that is -1. Raises InvalidRequestError: they may cut a picture."""
    if tiles:
        raise InvalidRequestError(
            "a prompt with pictures or prompt_embeds cannot be truncated", "truncate_prompt_tokens"
        )
    return ids[-(num_most if num_kept < 0 else num_kept) :]


def suffix_of(prompt: Input) -> str | None:
    """The suffix. Raises InvalidRequestError: it is not text, or the prompt is not."""
    suffix = prompt.get("suffix") if isinstance(prompt, dict) else None
    if suffix is not None and not (isinstance(suffix, str) and isinstance(prompt, dict) and "prompt" in prompt):
        raise InvalidRequestError("suffix is a text, and belongs to a prompt of text", "suffix")
    return suffix


def cache_salt(prompt: Input) -> str:
    """The cache salt. Raises InvalidRequestError: it is not text, or empty."""
    salt = prompt.get("cache_salt") if isinstance(prompt, dict) else getattr(prompt, "cache_salt", None)
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise InvalidRequestError("cache_salt must be a text that is not empty", "cache_salt")
    return salt or ""


def _integers(ids: object) -> list[int]:
    token_ids = integers(ids)
    if token_ids is None:
        raise InvalidRequestError(
            "a prompt is a string, a list of token ids, or a dict with prompt or prompt_token_ids", "prompt"
        )
    return token_ids
