"""EngineLink: the callers' end of the connection to an engine's process. Lives on their event loop."""

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from lullm.engine.caller.stream import OutputStream, call_on
from lullm.engine.process.frame import CHUNK_BYTES, FrameReader, framed
from lullm.engine.process.message import (
    Admit,
    Answer,
    Call,
    Cancel,
    Command,
    Ended,
    Heard,
    News,
    Outputs,
    Refused,
    Status,
    Stop,
    Taken,
    Weight,
    Withdraw,
    decode_news,
    encode,
)
from lullm.engine.process.output_codec import TextOf, decode_output
from lullm.engine.process.request_codec import encode_request
from lullm.engine.process.spawn import EngineProcess, dead
from lullm.errors import EngineDeadError, InvalidRequestError, LullmError
from lullm.executor.feeding import Feeding
from lullm.machine.owner import check_owner
from lullm.types.request import GenerateRequest
from lullm.types.sleep import SleepEvent
from lullm.types.wire.plain_error import error_of, lullm_error_of

T = TypeVar("T")

_NEVER_SENT = EngineDeadError("the engine has been shut down")


class EngineLink:
    """A `Door` to an engine's process, and calls to it. One event loop at a time uses it.

    Args:
        process: a process that is ready.
        status: its first status.
        text_of: the text of a token.
        hear: receives sleeps and wake-ups, for their observers.

    Attributes:
        feeding: an update whose next weight the engine waits for. Its iterable must not use the link.
        status: the latest that the process has sent; once it has ended, without requests and without a next sleep.
    """

    def __init__(self, process: EngineProcess, status: Status, text_of: TextOf, hear: Callable[[SleepEvent], None]):
        self.status = status
        self.feeding = Feeding()
        self._process = process
        self._sock = process.sock
        self._text_of = text_of
        self._hear = hear
        self._reader = FrameReader()
        self._unsent = bytearray()
        self._serials = itertools.count()
        self._requests: dict[int, tuple[GenerateRequest, OutputStream]] = {}
        self._serial_of: dict[OutputStream, int] = {}
        self._calls: dict[int, asyncio.Future[bytes]] = {}
        self._num_sleeps = 0  # running calls that may put the engine to sleep
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listening: asyncio.TimerHandle | None = None
        self._is_draining = False
        self._error: EngineDeadError | None = None
        self._ends: list[asyncio.Future[None]] = []

    # -- a `Door` ------------------------------------------------------------------------------------------------

    def check_running(self) -> None:
        """Check that the engine takes requests. Raises EngineDeadError, with the cause; InvalidRequestError: the
        engine waits for a weight (`feeding`).
        """
        self.feeding.check()
        self.attach()
        self.check_alive()

    def check_alive(self) -> None:
        """As `check_running`, from any thread."""
        if self._error is not None:
            raise self._error
        if self._is_draining:
            raise EngineDeadError("the engine is being shut down and takes no new requests")

    def send(self, arrivals: Sequence[tuple[GenerateRequest, OutputStream]]) -> None:
        """Have the engine take or refuse requests soon. Raises EngineDeadError."""
        self.check_running()
        frames = []
        for request, stream in arrivals:
            serial = next(self._serials)
            try:
                frames.append(encode(Admit(serial, encode_request(request), stream.sent_s, stream.keep_alive)))
            except (TypeError, ValueError, OverflowError) as error:
                stream.fail(InvalidRequestError(f"the request cannot be sent to the engine's process: {error}"))
                continue
            self._requests[serial] = request, stream
            self._serial_of[stream] = serial
        self._send(*frames)

    def withdraw(self, request: GenerateRequest, stream: OutputStream) -> None:
        """End a request whose reader has gone. Raises EngineDeadError."""
        serial = self._serial_of.get(stream)
        if serial is not None:
            self._forget(serial)
            self._command(Withdraw(serial))

    @property
    def is_away(self) -> bool:
        """Whether the engine sleeps or is about to, so that a request would wait or be refused."""
        return self._num_sleeps > 0 or self.status.is_away

    # -- calls ---------------------------------------------------------------------------------------------------

    async def call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        """Call a verb in the engine's process; returns a `kind`. Raises as the call does there, and EngineDeadError."""
        self.check_running()
        serial = next(self._serials)
        try:
            data = encode(Call(serial, verb, arguments))
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(
                f"{verb}: the arguments cannot be sent to the engine's process: {error}"
            ) from None
        self._num_sleeps += verb == "sleep"
        try:
            return msgspec.msgpack.decode(await self._answer_to(serial, data), type=kind)
        finally:
            self._num_sleeps -= verb == "sleep"

    async def give(self, data: bytes | None, is_broken: bool = False) -> None:
        """Send a weight of the running update, or its end; returns once the engine takes it. Raises EngineDeadError.

        See `Weight`.
        """
        serial = next(self._serials)
        await self._answer_to(serial, encode(Weight(serial, data, is_broken)))

    async def _answer_to(self, serial: int, data: bytes) -> bytes:
        """Send a command that is answered, and return the answer."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._calls[serial] = answer
        try:
            self._send(data)
            return await answer
        except asyncio.CancelledError:
            if self._error is None:
                self._command(Cancel(serial))
            raise
        finally:
            self._calls.pop(serial, None)

    def stop(self, drain: bool) -> None:
        """Have the engine end. Does not wait. Idempotent."""
        self.feeding.check()
        self.attach()
        self._is_draining = True
        if self._error is None:
            self._command(Stop(drain))

    async def join(self) -> None:
        """Return once the process has ended. Idempotent."""
        self.attach()
        if self._error is None:
            end: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._ends.append(end)
            await end
        await asyncio.to_thread(self._process.join)

    # -- the connection ------------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Have the running event loop read the connection; without a running loop do nothing.

        Raises UnsupportedError: this process is a fork, which would read messages for the engine's owner.
        """
        check_owner(self._process.owner)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        before = self._loop
        if before is loop or self._error is not None:
            return
        if before is not None and not before.is_closed():
            if before.is_running():
                raise LullmError("an engine in a process of its own serves one event loop at a time")
            self._detach()
        self._loop = loop
        loop.add_reader(self._sock, self._receive)
        self._listen(loop)
        if self._unsent:
            loop.add_writer(self._sock, self._flush)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check the process's heartbeat, again and again."""
        self._process.lose_if_silent()
        self._listening = loop.call_later(self._process.tick_s, self._listen, loop)

    def _detach(self) -> None:
        """Idempotent."""
        if self._listening is not None:
            self._listening.cancel()
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._sock)
            loop.remove_writer(self._sock)

    def _command(self, command: Command) -> None:
        self._send(encode(command))

    def _send(self, *frames: bytes) -> None:
        """Write without blocking. The loop writes the rest once the socket has room."""
        if self._error is not None:
            raise self._error
        is_waiting = bool(self._unsent)
        self._unsent += b"".join(map(framed, frames))
        if not is_waiting:
            self._flush()
            if self._unsent and self._loop is not None:
                self._loop.add_writer(self._sock, self._flush)

    def _flush(self) -> None:
        try:
            num_sent = self._sock.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:  # the socket is closed; reading tells why
            num_sent = len(self._unsent)
        del self._unsent[:num_sent]
        if not self._unsent and self._loop is not None:
            self._loop.remove_writer(self._sock)

    def _receive(self) -> None:
        try:
            data = self._sock.recv(CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._detach()  # before the socket is closed
            self._end(dead(self._process.cause_of_death()))
            return
        for frame in self._reader.feed(data):
            self._take(decode_news(frame))

    def _take(self, news: News) -> None:
        match news:
            case Outputs():
                self._put_all(news)
            case Taken(serial):
                if (known := self._requests.get(serial)) is not None:
                    known[1].is_taken.set()
            case Refused(serial, error):
                if (known := self._requests.get(serial)) is not None:
                    self._forget(serial)
                    known[1].fail(lullm_error_of(error))
            case Answer():
                self.status = news.status
                self._answer(news)
            case Heard(event, status):
                self.status = status
                self._hear(event)
            case Ended(error):
                self._end(_NEVER_SENT if error is None else EngineDeadError(str(error_of(error))))

    def _put_all(self, news: Outputs) -> None:
        self.status = news.status or self.status
        for output in news.outputs:
            known = self._requests.get(output.serial)
            if known is None:  # its reader has gone
                continue
            request, stream = known
            if output.finished:
                self._forget(output.serial)
            self._put(stream, decode_output(output, request, self._text_of))

    def _put(self, stream: OutputStream, output: Any) -> None:
        if stream.outlet.loop is self._loop:
            stream.items.put(output)
        else:
            call_on(stream.outlet.loop, lambda: stream.items.put(output))

    def _answer(self, news: Answer) -> None:
        answer = self._calls.get(news.serial)
        if answer is None or answer.done():
            return
        if news.error is None:
            answer.set_result(news.result)
        else:
            answer.set_exception(error_of(news.error))

    def _forget(self, serial: int) -> None:
        _, stream = self._requests.pop(serial)
        del self._serial_of[stream]

    def _end(self, error: EngineDeadError) -> None:
        """The engine has ended: fail all waiting calls with the error."""
        if self._error is not None:
            return
        self._error = error
        # A dead server answers scrapes for some seconds more: no autoscaler shall see requests that have failed.
        self.status = msgspec.structs.replace(self.status, stats=self.status.stats.without_requests(), rung=None)
        self._detach()
        for _, stream in self._requests.values():
            stream.fail(error)
        self._requests.clear()
        self._serial_of.clear()
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(error)
        for end in self._ends:
            if not end.done():
                end.set_result(None)
