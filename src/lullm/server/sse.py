"""Server-sent events, and work that ends when its client disconnects.

A token costs one small dict and one `json` call on its way to the socket; no pydantic model is validated.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lullm.server.error import ApiError

T = TypeVar("T")

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class ClientDisconnectedError(Exception):
    """The client has gone and reads no answer."""


def encode(data: dict[str, Any]) -> bytes:
    """JSON as the server writes it. Raises ValueError: a number is not finite."""
    return _to_json(data).encode()


def event(data: dict[str, Any]) -> bytes:
    """One event on the wire."""
    return b"data: " + encode(data) + b"\n\n"


def typed_event(data: dict[str, Any]) -> bytes:
    """One event on the wire that its type names, too, as in the dialects of Anthropic and of OpenAI's Responses."""
    name: str = data["type"]
    return b"event: " + name.encode() + b"\n" + event(data)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, which is cancelled when the client disconnects. Read the body before calling this.

    Raises:
        ClientDisconnectedError: the client went first.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not worker.done():
            raise ClientDisconnectedError
        return worker.result()
    finally:
        for task in (worker, watcher):
            task.cancel()
        # The worker's clean-up (aborting its request) is over before the caller goes on.
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that sends `chunks` as they come.

    The headers leave with the first chunk, so that a request which fails before it has an ordinary error answer. A
    later failure is one last chunk, `failure` of what `to_api_error` says that the client reads of it.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        to_api_error: Callable[[Exception], ApiError],
        failure: Callable[[ApiError], bytes],
        media_type: str,
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._to_api_error = to_api_error
        self._failure = failure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnectedError):
            await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        started = False
        async with contextlib.aclosing(self._chunks):
            try:
                async for chunk in self._chunks:
                    if not started:
                        started = True
                        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            except Exception as error:
                if not started:
                    raise
                last = self._failure(self._to_api_error(error))
                await send({"type": "http.response.body", "body": last, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
