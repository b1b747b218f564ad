"""Entry: how a request on an event loop gets into an engine, and how its outputs come back."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Protocol

from lullm.config.resolved import IdleConfig
from lullm.engine.caller.backlog import Backlog
from lullm.engine.caller.stream import LoopOutlet, OutputStream
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, LullmError
from lullm.types.pooling.outputs import EngineOutput, PoolingOutput, PoolingRequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind


class Door(Protocol):
    """The way to an engine, on a thread or in another process."""

    def check_running(self) -> None:
        """Return if requests are taken. Raises EngineDeadError otherwise, with the cause."""
        ...

    def send(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Have the engine take or refuse a request soon. Raises EngineDeadError, InvalidRequestError."""
        ...

    def withdraw(self, request: GenerateRequest, stream: OutputStream) -> None:
        """End a request whose reader has gone. Raises EngineDeadError."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether a request would have to wait, or be refused, since the engine sleeps or is about to."""
        ...


class Entry:
    """Lets requests of event loops into one engine. Safe to use from several loops."""

    def __init__(self, door: Door, idle: IdleConfig):
        self._door = door
        self._idle = idle
        self._num_untaken = 0  # requests that were sent and not taken in; changes under the lock
        self._lock = threading.Lock()

    async def outputs(self, request: GenerateRequest, keep_alive: float | None) -> AsyncGenerator[EngineOutput, None]:
        """Outputs of one request; closing the generator aborts it. Raises as `EngineClient.stream` does."""
        self._door.check_running()
        self._check_keep_alive(keep_alive)
        backlog = Backlog(is_delta=request.params.output_kind is OutputKind.DELTA)
        stream = OutputStream(LoopOutlet(asyncio.get_running_loop()), time.monotonic(), keep_alive, backlog)
        finished = False
        try:
            async with self._waiting_to_enter(stream):
                self._door.send(request, stream)
            while not finished:
                item = await stream.items.take()
                finished = isinstance(item, LullmError) or item.finished
                if isinstance(item, LullmError):
                    raise item
                yield item
        finally:
            if not finished:
                stream.is_closed = True
                with contextlib.suppress(EngineDeadError):
                    self._door.withdraw(request, stream)

    async def vector(self, request: GenerateRequest, keep_alive: float | None) -> PoolingRequestOutput[PoolingOutput]:
        """The one output of a request that pools; cancelling the call aborts it."""
        async with contextlib.aclosing(self.outputs(request, keep_alive)) as outputs:
            async for output in outputs:
                if isinstance(output, PoolingRequestOutput):
                    return output
        raise EngineDeadError("the request was aborted")  # unreachable: a request has a last output, or an error

    @contextlib.asynccontextmanager
    async def _waiting_to_enter(self, stream: OutputStream) -> AsyncIterator[None]:
        """Around the sending of a request: ends once the engine has taken or refused it, which may have to wake first.

        Raises:
            EngineAsleepError: too many requests wait for that already, or the wait is too long.
        """
        if not self._idle.wakes_by_request:
            yield
            return
        with self._lock:
            if self._num_untaken >= self._idle.max_num_wake_waiting and self._door.is_away:
                raise EngineAsleepError(f"{self._num_untaken} requests wait already for the engine to wake up")
            self._num_untaken += 1
        try:
            yield
            async with asyncio.timeout(self._idle.wake_timeout):
                await stream.is_taken.wait()
        except TimeoutError:
            raise EngineAsleepError(f"the engine did not wake up within {self._idle.wake_timeout:g} s") from None
        finally:
            with self._lock:
                self._num_untaken -= 1

    def _check_keep_alive(self, keep_alive: float | None) -> None:
        if keep_alive is None:
            return
        if not self._idle.rungs:
            raise InvalidRequestError("keep_alive needs an engine with a sleep_after (--sleep-after)", "keep_alive")
        if not math.isfinite(keep_alive):
            raise InvalidRequestError(f"keep_alive must be a finite number of seconds, not {keep_alive}", "keep_alive")
