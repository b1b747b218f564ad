"""Entry: the way of a request from an event loop into an engine, and of its outputs back."""

import asyncio
import contextlib
import contextvars
import math
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lullm.config.resolved import IdleConfig
from lullm.engine.caller.backlog import Backlog, Reader
from lullm.engine.caller.stream import LoopOutlet, OutputStream
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, LullmError
from lullm.types.pooling.outputs import EngineOutput, PoolingOutput, PoolingRequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind

Arrival = tuple[GenerateRequest, OutputStream]

_QUIET_TURNS = 2
"""Turns of the event loop without a new request: a request's socket is read in one turn, it is prepared in the next."""
_GATHERING_S = 0.005
"""The longest that a request waits for others that come at the same time."""


class Door(Protocol):
    """The way to an engine, on a thread or in another process."""

    def check_running(self) -> None:
        """Check that the engine takes the caller's requests. Raises EngineDeadError or InvalidRequestError."""
        ...

    def send(self, arrivals: Sequence[Arrival]) -> None:
        """Have the engine take or refuse requests soon, all before its next step. Raises EngineDeadError."""
        ...

    def withdraw(self, request: GenerateRequest, stream: OutputStream) -> None:
        """End a request whose reader has gone. Raises EngineDeadError."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether the engine sleeps or is about to, so that a request would wait or be refused."""
        ...


class Entry:
    """Lets requests of event loops into one engine. Safe to use from several loops."""

    def __init__(self, door: Door, idle: IdleConfig):
        self._door = door
        self._idle = idle
        self._num_untaken = 0  # requests that were sent and not taken yet; changes under the lock
        self._arrivals: dict[asyncio.AbstractEventLoop, _Arrivals] = {}
        self._lock = threading.Lock()

    async def outputs(self, request: GenerateRequest, keep_alive: float | None) -> AsyncGenerator[EngineOutput, None]:
        """Outputs of one request; closing the generator aborts it. Raises as `EngineClient.stream` does."""
        stream = self._stream(request, keep_alive)
        try:
            await self._enter(request, stream)
            while not stream.is_closed:
                item = await stream.items.take()
                stream.is_closed = isinstance(item, LullmError) or item.finished
                if isinstance(item, LullmError):
                    raise item
                yield item
        finally:
            self._leave(request, stream)

    async def run(self, request: GenerateRequest, reader: Reader, keep_alive: float | None) -> None:
        """Have `reader` take the outputs of one request; cancelling aborts it. Raises as `EngineClient.run` does."""
        stream = self._stream(request, keep_alive)
        try:
            await self._enter(request, stream)
            error = await stream.items.pour(reader)
            stream.is_closed = True
            if error is not None:
                raise error
        finally:
            self._leave(request, stream)

    async def vector(self, request: GenerateRequest, keep_alive: float | None) -> PoolingRequestOutput[PoolingOutput]:
        """The one output of a request that pools; cancelling the call aborts it."""
        async with contextlib.aclosing(self.outputs(request, keep_alive)) as outputs:
            async for output in outputs:
                if isinstance(output, PoolingRequestOutput):
                    return output
        raise EngineDeadError("the request was aborted")  # unreachable: a request has a last output, or an error

    def _stream(self, request: GenerateRequest, keep_alive: float | None) -> OutputStream:
        self._door.check_running()
        check_keep_alive(self._idle, keep_alive)
        backlog = Backlog(is_delta=request.params.output_kind is OutputKind.DELTA)
        return OutputStream(LoopOutlet(asyncio.get_running_loop()), time.monotonic(), keep_alive, backlog)

    def _leave(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Withdraw a request whose stream has not ended."""
        if not stream.is_closed:
            stream.is_closed = True
            with contextlib.suppress(EngineDeadError):
                self._door.withdraw(request, stream)

    async def _enter(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Send a request. If the engine may have to wake for it, return only once the engine has taken or refused it.

        Raises:
            EngineAsleepError: too many requests wait for a wake-up already, or the wait is too long.
        """
        if not self._idle.wakes_by_request:
            self._send(request, stream)
            return
        with self._lock:
            if self._num_untaken >= self._idle.max_num_wake_waiting and self._door.is_away:
                raise EngineAsleepError(f"{self._num_untaken} requests wait already for the engine to wake up")
            self._num_untaken += 1
        try:
            self._send(request, stream)
            async with asyncio.timeout(self._idle.wake_timeout):
                await stream.is_taken.wait()
        except TimeoutError:
            raise EngineAsleepError(f"the engine did not wake up within {self._idle.wake_timeout:g} s") from None
        finally:
            with self._lock:
                self._num_untaken -= 1

    def _send(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Send a request together with those that come at the same time, so that one step begins with all of them.

        Otherwise the first of 32 is computed alone, and the others wait for that step.
        """
        loop = stream.outlet.loop
        arrivals = self._arrivals.get(loop)
        if arrivals is None:
            # A loop that was closed before it had sent its arrivals will never send them.
            for closed in [each for each in tuple(self._arrivals) if each.is_closed()]:
                self._arrivals.pop(closed, None)
            arrivals = self._arrivals[loop] = _Arrivals(loop.time() + _GATHERING_S)
            loop.call_soon(self._gather, loop, arrivals)
        arrivals.items.append((request, stream))
        arrivals.num_quiet_turns = 0

    def _gather(self, loop: asyncio.AbstractEventLoop, arrivals: "_Arrivals") -> None:
        """Send the arrivals once no more come."""
        arrivals.num_quiet_turns += 1
        if self._arrivals.get(loop) is not arrivals:  # they were sent already
            return
        if arrivals.num_quiet_turns <= _QUIET_TURNS and loop.time() < arrivals.latest_s:
            loop.call_soon(self._gather, loop, arrivals)
        else:
            self.send_arrived()

    def send_arrived(self) -> None:
        """Send the arrivals of the running loop now. Other calls do this first, so as not to overtake requests."""
        arrivals = self._arrivals.pop(asyncio.get_running_loop(), None)
        if arrivals is None:
            return
        items = [(request, stream) for request, stream in arrivals.items if not stream.is_closed]
        try:
            # Each request was checked in its own context. The running context belongs to one of them, or to a later
            # call.
            contextvars.Context().run(self._door.send, items)
        except EngineDeadError as error:
            for _, stream in items:
                stream.fail(error)


def check_keep_alive(idle: IdleConfig, keep_alive: float | None) -> None:
    """Check a request's `keep_alive` (see `EngineClient.stream`) of such an engine. Raises InvalidRequestError."""
    if keep_alive is None:
        return
    if not idle.heeds_keep_alive:
        raise InvalidRequestError(
            "keep_alive needs an engine that the next request wakes: start it with enable_sleep_mode and auto_wake "
            "(--enable-sleep-mode --auto-wake), or a sleep_after (--sleep-after)",
            "keep_alive",
        )
    if not math.isfinite(keep_alive):
        raise InvalidRequestError(f"keep_alive must be a finite number of seconds, not {keep_alive}", "keep_alive")


@dataclass(slots=True)
class _Arrivals:
    """Requests that are sent together, at `latest_s` (the loop's clock) at the latest."""

    latest_s: float
    items: list[Arrival] = field(default_factory=list)
    num_quiet_turns: int = 0
