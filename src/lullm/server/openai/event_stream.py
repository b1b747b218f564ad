"""EventStream: an answer in chunks. Each is sent in the turn of the event loop in which its output came.

No task is woken for a chunk: one call on the loop passes the engine's outputs of a step through their answers to their
sockets. Only while a connection is full, outputs wait in the engine's `Backlog`.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from lullm.server.error import ApiError, ClientDisconnectedError
from lullm.server.gate.half_close import PROD
from lullm.server.gate.request_log import RECORD, RequestRecord
from lullm.server.openai.generation import Generation
from lullm.server.sse import EVENTS, until_disconnect
from lullm.types.outputs import RequestOutput

START_S = 0.5
"""Seconds in which the engine's thread refuses a request, except in a long step; a later refusal is the last chunk."""
SILENCE_S = 10.0
_COMMENT = b": keep-alive\n\n"


class StreamForm(Protocol):
    """How the outputs of a generation become chunks; see `AnswerForm`."""

    @property
    def media_type(self) -> str: ...

    def chunk(self, number: int, output: RequestOutput) -> bytes: ...

    def end(self) -> bytes: ...

    def failure(self, error: ApiError) -> bytes: ...


class EventStream(Response):
    """A response that sends the outputs of a generation as they come.

    The headers are sent with the first chunk, so that a request that fails before it gets an ordinary error answer.
    They are sent after `START_S` at the latest, and events have a comment in every `SILENCE_S` without one: a CPU may
    work on a prompt for minutes, and proxies give up after one. A later failure is one last chunk. The last output is
    sent in one write with the answer's end.
    """

    def __init__(self, generation: Generation, form: StreamForm, timeout_s: float | None = None):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=form.media_type)
        del self.headers["content-length"]
        self._generation = generation
        self._form = form
        self._comment = _COMMENT if form.media_type == EVENTS else b""
        self._timeout_s = timeout_s
        self._is_started = False
        self._is_ended = False
        self._is_silent = False
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        record: RequestRecord = scope[RECORD]
        scope[PROD] = self._prod if self._comment else None
        self._sender = Sender(send)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(START_S, self._look)
        try:
            await until_disconnect(receive, self._send_all(), self._timeout_s)
        except ClientDisconnectedError:
            record.ending = "the client left"
        except Exception as error:
            if not self._is_started:
                raise
            failure = self._generation.context.api_error(error)
            record.ending = f"failed: {failure.code}"
            await self._sender.wait()
            self._send(self._form.failure(failure), more=False)
            await self._sender.wait()
        finally:
            self._timer.cancel()
            self._sender.close()
            scope.pop(PROD)  # another answer may follow, with the reason why there is no stream

    async def _send_all(self) -> None:
        await self._generation.run(self)
        await self._sender.wait()
        if not self._is_ended:  # the connection was full when the last output came
            self._send(self._form.end(), more=False)
            await self._sender.wait()

    # -- an `AnswerReader` ---------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """Whether the connection can take a chunk now."""
        return self._sender.is_idle

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once it can."""
        self._sender.when_idle(call)

    def take(self, number: int, output: RequestOutput) -> None:
        """Send an output's chunk; with the last one, the answer's end."""
        self._is_silent = False
        chunk = self._form.chunk(number, output)
        if self._generation.is_over():
            self._is_ended = True
            self._send(chunk + self._form.end(), more=False)
        elif chunk:
            self._send(chunk)

    # ------------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Begin an answer that has not begun, and send a comment on a silent one; again and again."""
        if self._is_ended or not (self._comment or not self._is_started):
            return
        if self._is_silent or not self._is_started:
            self._prod()
        self._is_silent = True
        self._timer = self._loop.call_later(SILENCE_S, self._look)

    def _prod(self) -> None:
        """Send a comment, if the connection can take it now."""
        if self.is_ready and not self._is_ended:
            self._send(self._comment)

    def _send(self, body: bytes, more: bool = True) -> None:
        messages: list[Message] = [{"type": "http.response.body", "body": body, "more_body": more}]
        if not self._is_started:
            self._is_started = True
            messages.insert(0, {"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        self._sender.send(messages)


class Sender:
    """Sends ASGI messages from outside of a task: `send` runs at once, and in a task only if it has to wait."""

    def __init__(self, send: Send):
        self._asgi_send = send
        self._rest: asyncio.Task[None] | None = None
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_idle(self) -> bool:
        """Whether everything was passed on."""
        return self._rest is None

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call `call` once it is idle; each call once."""
        if call not in self._waiting:
            self._waiting.append(call)

    def send(self, messages: list[Message]) -> None:
        """Send messages. Only while it is idle. Raises what ASGI's `send` does, if that did not wait."""
        assert self._rest is None
        sending = self._all(messages)
        try:
            waited = sending.send(None)
        except StopIteration:
            return
        self._rest = asyncio.ensure_future(_resumed(sending, waited))
        self._rest.add_done_callback(self._become_idle)

    async def wait(self) -> None:
        """Return once it is idle. Raises what ASGI's `send` does."""
        if self._rest is not None:
            await asyncio.shield(self._rest)

    def close(self) -> None:
        """Drop messages that were not passed on."""
        self._waiting.clear()
        if self._rest is not None:
            self._rest.cancel()

    async def _all(self, messages: list[Message]) -> None:
        for message in messages:
            await self._asgi_send(message)

    def _become_idle(self, _: object) -> None:
        self._rest = None
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


@types.coroutine
def _resumed(begun: Coroutine[Any, Any, None], waited: Any) -> Generator[Any, None, None]:
    """The rest of a coroutine that has been run to its first wait."""
    while True:
        try:
            found = yield waited
        except BaseException as error:
            waited = begun.throw(error)
        else:
            try:
                waited = begun.send(found)
            except StopIteration:
                return
