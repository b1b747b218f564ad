"""Sounds in a caller's prompt, as they were given: in parts of conversations, and in `multi_modal_data`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lullm.engine.caller.media_part import with_places
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import SOUND
from lullm.types.request import Conversation
from lullm.vision.source import SOUND as MEDIUM
from lullm.vision.source import from_base64

_PARTS = ("input_audio", "audio_url", "audio")
"""Types of parts that hold a sound: OpenAI's, vLLM's, and that of transformers."""
_NAMES = ("audio", "audio_url", "url", "path", "base64")
"""The keys of transformers' part: a sound or its URL; a URL; a file; the bytes."""


def without_sounds(prompt: Conversation, found: list[Any]) -> Conversation:
    """The conversation with `SOUND` in place of sounds, which are added to `found`: bytes, URLs, or objects.

    Raises InvalidRequestError: a part has none.
    """

    def place_of(part: Mapping[str, Any]) -> dict[str, str] | None:
        if part.get("type") not in _PARTS:
            return None
        found.append(_sound_of(part))
        return SOUND

    return with_places(prompt, place_of)


def _sound_of(part: Mapping[str, Any]) -> Any:
    kind = part["type"]
    if kind == "input_audio":
        value = part.get(kind)
        data = value.get("data") if isinstance(value, Mapping) else None
        if not isinstance(data, str):
            raise InvalidRequestError("a part of type 'input_audio' needs data: a file with a sound, in base64")
        return from_base64(data, MEDIUM)
    if kind == "audio_url":
        value = part.get(kind)
        value = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(value, str):
            raise InvalidRequestError("a part of type 'audio_url' needs the URL of a sound")
        return value
    given = {name: part[name] for name in _NAMES if part.get(name) is not None}
    if len(given) != 1:
        raise InvalidRequestError(f"a part of type 'audio' has one of {', '.join(_NAMES)}, not {len(given)} of them")
    [(name, value)] = given.items()
    if name == "audio":
        return value
    if not isinstance(value, str):
        raise InvalidRequestError(f"a part of type 'audio': {name} is a text, not {type(value).__name__}")
    if name == "base64":
        return from_base64(value, MEDIUM)
    return Path(value).absolute().as_uri() if name == "path" else value


def sounds_in(data: Mapping[str, Any]) -> list[Any]:
    """The sounds of `multi_modal_data`: arrays, or pairs of an array and its rate. Raises InvalidRequestError."""
    given = data.get("audio")
    if given is None:
        return []
    if not isinstance(given, list) or (given and _is_number(given[0])) or (len(given) == 2 and _is_number(given[1])):
        given = [given]
    if any(isinstance(one, (str, bytes)) for one in given):
        raise InvalidRequestError("multi_modal_data holds sounds, not their files or addresses: LLM.chat takes those")
    return list(given)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number))
