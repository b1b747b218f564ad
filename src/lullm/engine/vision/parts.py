"""Pictures and videos in a caller's prompt, as they were given: in parts of conversations, in `multi_modal_data`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lullm.engine.caller.media_part import with_places
from lullm.errors import InvalidRequestError
from lullm.text.chat_template import PICTURE, VIDEO
from lullm.types.request import Conversation

_PARTS = ("image_url", "input_image", "image_pil", "image")
"""Types of parts that hold a picture: OpenAI's, vLLM's, and that of transformers."""
_VIDEO_PARTS = ("video_url", "video")
"""vLLM's, and that of transformers and Qwen."""
_NOUNS = {PICTURE["type"]: "picture", VIDEO["type"]: "video"}


@dataclass(slots=True)
class Given:
    """In the order of the prompt, each kind for itself."""

    pictures: list[Any]
    videos: list[Any]


def without_shown(prompt: Conversation, found: Given) -> Conversation:
    """The conversation with `PICTURE` and `VIDEO` in place of pictures and videos, which are added to `found`.

    Raises InvalidRequestError: a part has none.
    """

    def place_of(part: Mapping[str, Any]) -> dict[str, str] | None:
        kind = part.get("type")
        place = PICTURE if kind in _PARTS else VIDEO if kind in _VIDEO_PARTS else None
        if place is not None:
            (found.pictures if place is PICTURE else found.videos).append(_value_of(part, place))
        return place

    return with_places(prompt, place_of)


def _value_of(part: Mapping[str, Any], place: dict[str, str]) -> Any:
    """What a part says about its picture or video: a URL, or an object."""
    kind, noun = part["type"], _NOUNS[place["type"]]
    value = part.get("image_url" if kind == "input_image" else kind)
    if kind in ("image", "video") and value is None:
        value = part.get("url")
    if kind in ("image_url", "input_image", "video_url"):
        value = value.get("url") if isinstance(value, Mapping) else value
        if not isinstance(value, str):
            raise InvalidRequestError(f"a part of type {kind!r} needs the URL of a {noun}")
    if value is None:
        raise InvalidRequestError(f"a part of type {kind!r} has no {noun}")
    return value


def shown_in(data: Any) -> Given:
    """The pictures and videos of `multi_modal_data`. Raises InvalidRequestError."""
    if not isinstance(data, Mapping):
        raise InvalidRequestError(f"multi_modal_data is {{'image': picture or pictures}}, not {type(data).__name__}")
    others = [str(key) for key, value in data.items() if key not in ("image", "video") and value is not None]
    if others:
        raise InvalidRequestError(f"multi_modal_data holds 'image' and 'video' only, not {', '.join(others)}")
    pictures = data.get("image")
    pictures = [] if pictures is None else pictures
    given = Given(list(pictures) if isinstance(pictures, (list, tuple)) else [pictures], _videos(data.get("video")))
    if any(isinstance(one, str) for one in (*given.pictures, *given.videos)):
        raise InvalidRequestError("multi_modal_data holds pictures, not their addresses: LLM.chat takes those")
    return given


def _videos(value: Any) -> list[Any]:
    """One, or several in a list. A list of pictures is one; so is a pair of frames and their metadata."""
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        is_several = len(getattr(value, "shape", ())) == 5
        return list(value) if is_several else [value]
    if isinstance(value, tuple) or (len(value) == 2 and isinstance(value[1], Mapping)):
        return [value]
    is_frames = bool(value) and all(_is_picture(one) for one in value)
    return [value] if is_frames else list(value)


def _is_picture(value: Any) -> bool:
    """Whether it is a picture of Pillow, or an array of one."""
    shape = getattr(value, "shape", None)
    return len(shape) in (2, 3) if shape is not None else hasattr(value, "getpixel")
