"""Parts of conversations that hold a picture, a video or a sound: taken out, with a place in their stead."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from lullm.types.request import Conversation, Input

P = TypeVar("P", bound=Input)


def with_places(prompt: Conversation, place_of: Callable[[Mapping[str, Any]], dict[str, str] | None]) -> Conversation:
    """The conversation with `place_of(part)` in place of each part; None: the part stays.

    Raises what `place_of` raises.
    """
    if not isinstance(prompt.messages, Sequence):
        return prompt
    messages = [_with_places(message, place_of) for message in prompt.messages]
    is_same = all(new is old for new, old in zip(messages, prompt.messages, strict=True))
    return prompt if is_same else replace(prompt, messages=messages)


def with_word(prompt: P, numbered: str, word: str) -> P:
    """A plain prompt with the model's word in place of those that match `numbered`, if it is not empty: they count
    what comes with the prompt, and are no tokens.
    """
    text = prompt.get("prompt") if numbered and isinstance(prompt, Mapping) else None
    if not isinstance(text, str) or not isinstance(prompt, Mapping):
        return prompt
    return cast(P, {**prompt, "prompt": re.sub(numbered, word, text)})


def _with_places(message: Any, place_of: Callable[[Mapping[str, Any]], dict[str, str] | None]) -> Any:
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    places = [place_of(part) if isinstance(part, Mapping) else None for part in content]
    if not any(places):
        return message
    return {**message, "content": [place or part for part, place in zip(content, places, strict=True)]}
