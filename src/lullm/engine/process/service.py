"""EngineService: an `LLMEngine` on its thread, asked by another process over a socket. In the engine's process.

Orders are read on a thread that never writes, so that they are always read: who waits for room in the socket gets
it. News are written on the engine's thread: a server that cannot keep up slows the engine down, and no memory grows.
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
    Ended,
    Heard,
    News,
    Order,
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
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.engine_thread import EngineThread
from lullm.engine.thread.mailbox import Command, EngineCall, Mailbox
from lullm.engine.thread.sleep_watch import SleepWatch
from lullm.errors import EngineDeadError, LullmError
from lullm.executor.remote.codec import decode as decode_value
from lullm.executor.remote.codec import encode as encode_value
from lullm.executor.remote.message import with_functions
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sleep import SleepOptions
from lullm.types.wire.plain_error import plain_error

_FOREIGN = ("collective_rpc", "update_weights")
"""Calls of code that callers bring along: their errors are not the engine's."""
STATUS_S = 0.02
"""Between two reports of a busy engine's status: one takes 15 us."""


class Outbox:
    """What leaves for the callers' process. Methods: on the engine's thread.

    Args:
        take_status: of the engine.

    Attributes:
        streams: of the requests that have not ended, by their number. Shared with the thread that reads.
    """

    def __init__(self, sock: socket.socket, take_status: Callable[[], Status]):
        self._sock = sock
        self._take_status = take_status
        self._reported_s = 0.0
        self.streams: dict[int, RemoteStream] = {}

    def send(self, news: News) -> None:
        """Blocks while the socket is full. Raises EngineDeadError: the other process has ended."""
        try:
            self._sock.sendall(framed(encode(news)))
        except OSError:
            raise EngineDeadError("the process of the engine's callers has ended") from None

    def deliver(self, items: Sequence[tuple["RemoteStream", EngineOutput]]) -> None:
        """The outputs of a step, in one message. See `Outlet`."""
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
        """A request ends with an error."""
        self.streams.pop(serial, None)
        self.send(Refused(serial, plain_error(error, HERE)))

    def report(self, is_busy: bool) -> None:
        """Tell the status; of a busy engine now and then."""
        if not is_busy or time.monotonic() >= self._reported_s + STATUS_S:
            self.send(Outputs([], self.status()))

    def status(self) -> Status:
        """The status, to be sent now."""
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


class EngineService:
    """One engine from `start` until it was told to stop, or has failed."""

    def __init__(self, engine: LLMEngine, idle: IdleConfig, sock: socket.socket):
        self._engine = engine
        self._mailbox = Mailbox()
        self._watch = SleepWatch(engine, self._mailbox, idle)
        self._admission = Admission(engine, self._mailbox, self._watch, idle)
        self._outbox = Outbox(sock, self._status)
        self._watch.observe(lambda event: self._outbox.send(Heard(event, self._outbox.status())))
        self._calls: dict[int, EngineCall[Any]] = {}
        self._verbs: dict[str, Callable[..., Any]] = {
            "wake_up": self._watch.wake_up,
            "explain_sleep": engine.explain_sleep,
            "resume": self._watch.resume,
            "reset_prefix_cache": engine.reset_prefix_cache,
            "occupancy": engine.occupancy,
            "abort": engine.abort_request,
            "expert_load": engine.expert_load,
            "rebalance_experts": engine.rebalance_experts,
            "start_profile": engine.start_profile,
            "stop_profile": lambda: str(engine.stop_profile()),
            "collective_rpc": self._collective_rpc,
            "update_weights": self._update_weights,
        }
        self._weights = WeightInbox(self._accept)

    def start(self) -> EngineThread:
        """Tell that the engine is there, and let its thread run."""
        engine, status = self._engine, self._outbox.status()
        self._outbox.send(Ready(engine.config.max_model_len, tuple(engine.remote_methods), status))
        return EngineThread(self._engine, self._mailbox, self._watch, self._admission, self._outbox.report)

    def end(self) -> None:
        """Tell that the thread has ended, and why."""
        failure = self._mailbox.failure
        self._outbox.send(Ended(None if failure is None else plain_error(failure, HERE)))

    def take(self, order: Order, thread: EngineThread) -> None:
        """Have the engine's thread do what was asked for; nothing if that has ended. On the thread that reads."""
        try:
            match order:
                case Admit():
                    self._admit(order)
                case Withdraw():
                    self._withdraw(order.serial)
                case Call():
                    self._call(order)
                case Weight():
                    self._weights.put(order)
                case Cancel():
                    if (call := self._calls.get(order.serial)) is not None:
                        call.answer.cancel()
                case Stop():
                    thread.stop(order.drain)
        except EngineDeadError:
            pass

    def _admit(self, order: Admit) -> None:
        request = decode_request(order.request)
        stream = RemoteStream(self._outbox, order.serial, request, order.sent_s, order.keep_alive)
        self._outbox.streams[order.serial] = stream
        self._admission.send([(request, stream)])

    def _withdraw(self, serial: int) -> None:
        stream = self._outbox.streams.pop(serial, None)
        if stream is not None:  # else it has ended meanwhile
            stream.is_closed = True
            self._admission.withdraw(stream.request, stream)

    def _call(self, order: Call) -> None:
        call, command = self._command(order)
        self._calls[order.serial] = call
        call.answer.add_done_callback(lambda answer: self._answer(order.serial, call))
        self._mailbox.send(command)

    def _command(self, order: Call) -> tuple[EngineCall[Any], Command]:
        """The call, and what sees to it on the engine's thread."""
        if order.verb == "sleep":
            options = SleepOptions(**order.arguments)
            sleep = EngineCall(lambda: self._watch.sleep(options))
            return sleep, lambda: self._watch.begin_sleep(sleep, options)
        function = self._verbs[order.verb]
        arguments = order.arguments
        if order.verb == "update_weights":  # those of the last one may have been left over
            self._weights = arguments["weights"] = WeightInbox(self._accept)
        call: EngineCall[Any] = EngineCall(lambda: function(**arguments), is_foreign=order.verb in _FOREIGN)
        return call, call.run

    def _answer(self, serial: int, call: EngineCall[Any]) -> None:
        """On the engine's thread; on the thread that reads if the call was cancelled: then its answer is dropped."""
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
        self._watch.restart_clock()
        function, timeout, args, kwargs = decode_value(memoryview(given))
        [method] = with_functions([function])
        found = self._engine.collective_rpc(method, timeout, with_functions(args), kwargs)
        try:
            return b"".join(encode_value(found))
        except TypeError as error:
            with contextlib.suppress(TypeError):  # records of the caller's own cross as dicts
                return b"".join(encode_value(msgspec.to_builtins(found)))
            raise LullmError(f"the result cannot leave the engine's process: {error}") from None

    def _update_weights(self, weights: WeightInbox) -> int:
        self._watch.restart_clock()
        return self._engine.update_weights(weights)

    def _accept(self, serial: int) -> None:
        self._outbox.send(Answer(serial, self._outbox.status()))

    def _status(self) -> Status:
        now = time.monotonic()
        idle_s, step = self._watch.idle_s, self._watch.next_sleep
        return Status(
            stats=self._engine.stats(),
            sleep_state=self._engine.sleep_state,
            sleeping_tags=self._engine.sleeping_tags,
            is_away=self._watch.is_away,
            idle_since=None if not idle_s else now - idle_s,
            rung=None if step is None else step[0],
            rung_due=0.0 if step is None else now + step[1],
        )
