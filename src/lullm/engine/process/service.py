"""EngineService: serves an `LLMEngine` on its thread to another process over a socket. In the engine's process.

A thread of its own reads commands and never writes. So a client that waits for room in the socket always gets it. The
engine's thread writes the news: a server that cannot keep up slows the engine down, and memory does not grow.
"""

import contextlib
import dataclasses
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lullm.config.resolved import IdleConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.process.frame import framed
from lullm.engine.process.message import (
    HERE,
    Admit,
    Answer,
    Call,
    Cancel,
    Command,
    Ended,
    Heard,
    News,
    Outputs,
    Ready,
    Refused,
    Status,
    Stop,
    Taken,
    Weight,
    Withdraw,
    encode,
)
from lullm.engine.process.output_codec import encode_output
from lullm.engine.process.request_codec import decode_request
from lullm.engine.process.weight_feed import WeightInbox
from lullm.engine.thread.engine_thread import EngineThread
from lullm.engine.thread.mailbox import EngineCall
from lullm.engine.thread.threaded_engine import ThreadedEngine
from lullm.errors import EngineDeadError, LullmError
from lullm.executor.remote.codec import decode as decode_value
from lullm.executor.remote.codec import encode as encode_value
from lullm.executor.remote.message import with_functions
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.wire.plain_error import plain_error

STATUS_S = 0.02
"""Seconds between two reports of a busy engine's status: one takes 15 us."""


class Outbox:
    """Sends messages to the callers' process. Methods: on the engine's thread.

    Args:
        take_status: the engine's current status.

    Attributes:
        streams: of the requests that have not ended, by their number. Shared with the thread that reads.
    """

    def __init__(self, sock: socket.socket, take_status: Callable[[], Status]):
        self._sock = sock
        self._take_status = take_status
        self._reported_s = 0.0
        self.streams: dict[int, RemoteStream] = {}

    def send(self, news: News) -> None:
        """Send a message. Blocks while the socket is full. Raises EngineDeadError: the other process has ended."""
        try:
            self._sock.sendall(framed(encode(news)))
        except OSError:
            raise EngineDeadError("the process of the engine's callers has ended") from None

    def deliver(self, items: Sequence[tuple["RemoteStream", EngineOutput]]) -> None:
        """Send the outputs of a step in one message. See `Outlet`."""
        outputs = []
        is_due = time.monotonic() >= self._reported_s + STATUS_S
        for stream, output in items:
            outputs.append(encode_output(stream.serial, output))
            if output.finished:
                self.streams.pop(stream.serial, None)
            is_due |= output.finished or stream.is_new
            stream.is_new = False
        self.send(Outputs(outputs, self.status() if is_due else None))

    def refuse(self, serial: int, error: LullmError) -> None:
        """End a request with an error."""
        self.streams.pop(serial, None)
        self.send(Refused(serial, plain_error(error, HERE)))

    def report(self, is_busy: bool) -> None:
        """Send the status; for a busy engine only every `STATUS_S`."""
        if not is_busy or time.monotonic() >= self._reported_s + STATUS_S:
            self.send(Outputs([], self.status()))

    def status(self) -> Status:
        """The status, which the caller then sends."""
        self._reported_s = time.monotonic()
        return self._take_status()


@dataclasses.dataclass(slots=True, eq=False)
class RemoteStream:
    """The stream of a request whose reader is in the other process; see `Stream`."""

    outlet: Outbox
    serial: int
    request: GenerateRequest
    sent_s: float
    keep_alive: float | None
    is_closed: bool = False
    is_new: bool = True  # until its first output

    def confirm(self) -> None:
        """The engine has the request."""
        self.outlet.send(Taken(self.serial))

    def fail(self, error: LullmError) -> None:
        """The request ends with `error`."""
        self.outlet.refuse(self.serial, error)


class EngineService(ThreadedEngine):
    """Serves one engine, from `begin` until a `Stop` or a failure."""

    def __init__(self, engine: LLMEngine, idle: IdleConfig, sock: socket.socket):
        super().__init__(engine, idle)
        self._outbox = Outbox(sock, self._status)
        self.sleep_control.observe(lambda event: self._outbox.send(Heard(event, self._outbox.status())))
        self._calls: dict[int, EngineCall[Any]] = {}
        self._weights = WeightInbox(self._accept)

    def begin(self) -> EngineThread:
        """Tell the other process that the engine is ready, and start its thread."""
        engine, status = self.engine, self._outbox.status()
        self._outbox.send(Ready(engine.config.max_model_len, tuple(engine.remote_methods), status))
        return self.start(self._outbox.report)

    def end(self) -> None:
        """Tell the other process that the thread has ended, and why."""
        failure = self.mailbox.failure
        self._outbox.send(Ended(None if failure is None else plain_error(failure, HERE)))

    def take(self, command: Command, thread: EngineThread) -> None:
        """Have the engine's thread run a command; do nothing if it has ended. On the thread that reads."""
        try:
            match command:
                case Admit():
                    self._admit(command)
                case Withdraw():
                    self._withdraw(command.serial)
                case Call():
                    self._call(command)
                case Weight():
                    self._weights.put(command)
                case Cancel():
                    if (call := self._calls.get(command.serial)) is not None:
                        call.answer.cancel()
                case Stop():
                    thread.stop(command.drain)
        except EngineDeadError:
            pass

    def _admit(self, command: Admit) -> None:
        request = decode_request(command.request)
        stream = RemoteStream(self._outbox, command.serial, request, command.sent_s, command.keep_alive)
        self._outbox.streams[command.serial] = stream
        self.admission.send([(request, stream)])

    def _withdraw(self, serial: int) -> None:
        stream = self._outbox.streams.pop(serial, None)
        if stream is not None:  # else it has ended already
            stream.is_closed = True
            self.admission.withdraw(stream.request, stream)

    def _call(self, command: Call) -> None:
        if command.verb == "update_weights":  # the last update may have left some over
            self._weights = command.arguments["weights"] = WeightInbox(self._accept)
        call, start = self.call(command.verb, command.arguments)
        self._calls[command.serial] = call
        call.answer.add_done_callback(lambda answer: self._answer(command.serial, call))
        self.mailbox.send(start)

    def function(self, verb: str) -> Callable[..., Any]:
        """The function of a verb: see `ThreadedEngine`."""
        here: dict[str, Callable[..., Any]] = {
            "collective_rpc": self._collective_rpc,
            "stop_profile": lambda: str(self.engine.stop_profile()),
        }
        return here.get(verb) or super().function(verb)

    def _answer(self, serial: int, call: EngineCall[Any]) -> None:
        """Send a call's answer; drop it if the call was cancelled. On the engine's thread, or the one that reads."""
        del self._calls[serial]
        if call.answer.cancelled():
            return
        error = call.answer.exception()
        result = b""
        if error is None:
            try:
                result = encode(call.answer.result())
            except (TypeError, ValueError, OverflowError) as reason:
                error = LullmError(f"the result cannot leave the engine's process: {reason}")
        status = self._outbox.status()
        self._outbox.send(Answer(serial, status, result, None if error is None else plain_error(error, HERE)))

    def _collective_rpc(self, given: bytes) -> bytes:
        function, timeout, args, kwargs = decode_value(memoryview(given))
        [method] = with_functions([function])
        found = self.engine.collective_rpc(method, timeout, with_functions(args), kwargs)
        try:
            return b"".join(encode_value(found))
        except TypeError as error:
            with contextlib.suppress(TypeError):  # records of the caller's own types cross as dicts
                return b"".join(encode_value(msgspec.to_builtins(found)))
            raise LullmError(f"the result cannot leave the engine's process: {error}") from None

    def _accept(self, serial: int) -> None:
        self._outbox.send(Answer(serial, self._outbox.status()))

    def _status(self) -> Status:
        now = time.monotonic()
        idle_s, step = self.sleep_control.idle_s, self.sleep_control.next_sleep
        return Status(
            stats=self.engine.stats(),
            sleep_state=self.engine.sleep_state,
            sleeping_tags=self.engine.sleeping_tags,
            is_away=self.sleep_control.is_away,
            idle_since=None if not idle_s else now - idle_s,
            rung=None if step is None else step[0],
            rung_due=0.0 if step is None else now + step[1],
        )
