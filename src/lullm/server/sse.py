"""Server-sent events, and work that ends when its client disconnects.

A token costs one small dict on its way to the socket; no pydantic model is validated.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive

from lullm.server.error import ApiError, ClientDisconnectedError

T = TypeVar("T")

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_to_json = msgspec.json.Encoder().encode


def encode(data: Any) -> bytes:
    """Data as JSON; a number that is not finite becomes null."""
    return _to_json(data)


def event(data: dict[str, Any]) -> bytes:
    """One event on the wire."""
    return b"data: " + encode(data) + b"\n\n"


def typed_event(data: dict[str, Any]) -> bytes:
    """One event with its type's name, as in the dialects of Anthropic and of OpenAI's Responses."""
    name: str = data["type"]
    return b"event: " + name.encode() + b"\n" + event(data)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """The result of `work`, which is cancelled when the client disconnects. Read the body before calling this.

    Raises:
        ClientDisconnectedError: the client disconnected.
        ApiError: 504: the work took longer than `timeout_s`.
    """
    task = asyncio.current_task()
    assert task is not None
    is_working, has_left = True, False

    def leave(_: object) -> None:
        nonlocal has_left
        if is_working:
            has_left = True
            task.cancel()

    watcher = asyncio.ensure_future(_disconnect(receive))
    watcher.add_done_callback(leave)
    try:
        async with asyncio.timeout(timeout_s) as clock:
            return await work
    except asyncio.CancelledError:
        if has_left and task.uncancel() == 0:  # otherwise the server itself ends the task
            raise ClientDisconnectedError from None
        raise
    except TimeoutError:
        if not clock.expired():  # it is an error of the work itself
            raise
        raise ApiError(
            504, f"the answer took longer than {timeout_s:g} s (--request-timeout)", code="request_timeout"
        ) from None
    finally:
        is_working = False
        watcher.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
