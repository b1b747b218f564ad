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
from lullm.server.gate.request_log import RECORD, RequestRecord

T = TypeVar("T")

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


START_S = 0.5
"""A refusal by the engine's thread comes within it, unless a long step runs; then it is the stream's last chunk."""
SILENCE_S = 10.0
_COMMENT = b": keep-alive\n\n"


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


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
    """The result of `work`, which is cancelled when the client disconnects. Read the body before calling this.

    Raises:
        ClientDisconnectedError: the client went first. ApiError: 504, the work took longer than `timeout_s`.
    """
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({worker, watcher}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        if watcher.done():
            raise ClientDisconnectedError
        raise ApiError(504, f"the answer took longer than {timeout_s:g} s (--request-timeout)", code="request_timeout")
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

    The headers leave with the first chunk, so that a request which fails before it has an ordinary error answer; but
    after `START_S` at the latest, and events have a comment in every `SILENCE_S` without one: a CPU may work on a
    prompt for minutes, and proxies give up after one. A later failure is one last chunk, `failure` of what
    `to_api_error` says that the client reads of it.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        to_api_error: Callable[[Exception], ApiError],
        failure: Callable[[ApiError], bytes],
        media_type: str,
        timeout_s: float | None = None,
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._to_api_error = to_api_error
        self._failure = failure
        self._comment = _COMMENT if media_type == EVENTS else b""
        self._timeout_s = timeout_s
        self._is_started = False
        self._is_silent = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope[RECORD]
        try:
            await until_disconnect(receive, self._send_all(send), self._timeout_s)
        except ClientDisconnectedError:
            record.ending = "the client left"
            return
        except Exception as error:
            if not self._is_started:
                raise
            failure = self._to_api_error(error)
            record.ending = f"failed: {failure.code}"
            await _send_body(send, self._failure(failure))
        await _send_body(send, b"", more=False)

    async def _send_all(self, send: Send) -> None:
        keeper = asyncio.create_task(self._keep_alive(send))
        try:
            async with contextlib.aclosing(self._chunks):
                async for chunk in self._chunks:
                    if not self._is_started:
                        await self._start(send)
                    self._is_silent = False
                    await _send_body(send, chunk)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep_alive(self, send: Send) -> None:
        await asyncio.sleep(START_S)
        if not self._is_started:
            await self._start(send)
            await _send_body(send, self._comment)
        while self._comment:
            self._is_silent = True
            await asyncio.sleep(SILENCE_S)
            if self._is_silent:
                await _send_body(send, self._comment)

    async def _start(self, send: Send) -> None:
        self._is_started = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})


async def _send_body(send: Send, body: bytes, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
