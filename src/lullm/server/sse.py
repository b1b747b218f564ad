"""Server-sent events, and work that ends when its client disconnects.

A token costs one small dict on its way to the socket; no pydantic model is validated.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lullm.server.error import ApiError, ClientDisconnectedError
from lullm.server.gate.request_log import RECORD, RequestRecord

T = TypeVar("T")

EVENTS = "text/event-stream"
DONE = b"data: [DONE]\n\n"
_to_json = msgspec.json.Encoder().encode


START_S = 0.5
"""A refusal by the engine's thread comes within it, unless a long step runs; then it is the stream's last chunk."""
SILENCE_S = 10.0
_COMMENT = b": keep-alive\n\n"


def encode(data: Any) -> bytes:
    """JSON as the server writes it; a number that is not finite is null."""
    return _to_json(data)


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
        if has_left and task.uncancel() == 0:  # else the server itself ends the task
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


class EventStream(Response):
    """A response that sends `chunks` as they come.

    The headers leave with the first chunk, so that a request which fails before it has an ordinary error answer; but
    after `START_S` at the latest, and events have a comment in every `SILENCE_S` without one: a CPU may work on a
    prompt for minutes, and proxies give up after one. A later failure is one last chunk, `failure` of what
    `to_api_error` says that the client reads of it. Once the source `is_over`, the chunks that are left leave in one
    write with the answer's end.
    """

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        to_api_error: Callable[[Exception], ApiError],
        failure: Callable[[ApiError], bytes],
        media_type: str,
        timeout_s: float | None = None,
        is_over: Callable[[], bool] = lambda: False,
    ):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._chunks = chunks
        self._is_over = is_over
        self._to_api_error = to_api_error
        self._failure = failure
        self._comment = _COMMENT if media_type == EVENTS else b""
        self._timeout_s = timeout_s
        self._is_started = False
        self._is_silent = False
        self._tail = b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope[RECORD]
        try:
            await until_disconnect(receive, self._send_all(send), self._timeout_s)
        except ClientDisconnectedError:
            record.ending = "the client left"
            return
        except Exception as error:
            if not self._is_started and not self._tail:
                raise
            failure = self._to_api_error(error)
            record.ending = f"failed: {failure.code}"
            self._tail += self._failure(failure)
        await self._send(send, self._tail, more=False)

    async def _send_all(self, send: Send) -> None:
        keepers: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            START_S, lambda: keepers.append(asyncio.ensure_future(self._keep_alive(send)))
        )
        try:
            async with contextlib.aclosing(self._chunks):
                async for chunk in self._chunks:
                    self._is_silent = False
                    if self._is_over():
                        self._tail += chunk
                    else:
                        await self._send(send, chunk)
        finally:
            timer.cancel()
            for keeper in keepers:
                keeper.cancel()
            await asyncio.gather(*keepers, return_exceptions=True)

    async def _keep_alive(self, send: Send) -> None:
        if not self._is_started:
            await self._send(send, self._comment)
        while self._comment:
            self._is_silent = True
            await asyncio.sleep(SILENCE_S)
            if self._is_silent:
                await self._send(send, self._comment)

    async def _send(self, send: Send, body: bytes, more: bool = True) -> None:
        if not self._is_started:
            self._is_started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": body, "more_body": more})
