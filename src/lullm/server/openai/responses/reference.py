"""References to items of earlier answers, as clients send them that expect a server to keep what it says (AI SDK)."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic_core import from_json

from lullm.server.error import ApiError
from lullm.server.sse import encode


def response_of(item_id: str) -> str:
    """The id of the response that an item is of (`ItemStream`)."""
    return f"resp-{item_id.partition('_')[2].rpartition('_')[0]}"


def references(given: Any) -> Iterator[tuple[int, str]]:
    """The places and the ids of the references in `input`."""
    for place, item in enumerate(given if isinstance(given, list) else ()):
        if isinstance(item, dict) and item.get("type") == "item_reference":
            yield place, str(item.get("id"))


def resolved(given: list[Any], told: Mapping[str, bytes], room: int) -> list[Any]:
    """`given` with items in place of the references to them.

    Args:
        told: responses by their ids, as JSON.
        room: most bytes of these items; a reference to a long one is short, and may occur often.

    Raises:
        ApiError: an item is not there, or they have no room.
    """
    outputs = (item for response in told.values() for item in from_json(response)["output"])
    known = {item["id"]: (item, len(encode(item))) for item in outputs}
    items = list(given)
    for place, name in references(given):
        if name not in known:
            raise no_item(place, name)
        items[place], num_bytes = known[name]
        room -= num_bytes
        if room < 0:
            raise ApiError(413, "the items referred to are too long together", param="input", code="body_too_large")
    return items


def no_item(place: int, name: str) -> ApiError:
    """The error of a reference to nothing."""
    text = f"input.{place}: there is no item {name!r} (any more); send the item itself"
    return ApiError(400, text, param="input", code="item_not_found")
