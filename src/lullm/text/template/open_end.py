"""A conversation whose last message goes on: the prompt is cut at the end of that message.

As in transformers: the template sees the message with a tag at its end, and the text is cut at the tag. So the template
may change the content in any way, as long as it shows its end.
"""

import secrets
from typing import Any

from lullm.errors import InvalidRequestError

OPTION = "continue_final_message"


def take_open_end(variables: dict[str, Any]) -> str | None:
    """Put a tag at the end of the last message of a template's `variables`, if they ask for it. Returns the tag.

    Raises:
        InvalidRequestError: they ask for a new turn as well, or the last message has no text.
    """
    if not variables.pop(OPTION, False):
        return None
    if variables.get("add_generation_prompt"):
        raise InvalidRequestError(f"{OPTION} and add_generation_prompt exclude each other", OPTION)
    *others, last = variables["messages"]
    if not isinstance(last.get("content"), str) or last.get("tool_calls"):
        raise InvalidRequestError(f"{OPTION} needs a last message with text", OPTION)
    tag = secrets.token_hex(16)
    variables["messages"] = [*others, {**last, "content": last["content"] + tag}]
    return tag


def cut_at(text: str, tag: str) -> str:
    """The text before the tag. Raises InvalidRequestError: the template does not show the last message's end."""
    if tag not in text:
        raise InvalidRequestError("the chat template does not show the end of the last message", OPTION)
    return text[: text.rindex(tag)]
