"""Admission: which request may enter the engine, and when; where its outputs go.

    the engine is awake                        the request enters
    it sleeps                                  the request wakes it and enters, or is refused
    it is paused, or a sleep waits its turn    the request waits, or is refused

Whether requests wake the engine, and so may wait, is `wakes_by_request`. A request that wakes the engine enters in the
same command, so that no other call comes between. A pause, and a sleep that waits for running requests, are ended by
the call that began them or by `wake_up`: a request waits for their end.
"""

import asyncio
import contextlib
import functools
import math
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator

from lullm.config.resolved import IdleConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.backlog import Backlog
from lullm.engine.thread.mailbox import Mailbox, OutputStream, call_on, unforeseen
from lullm.engine.thread.sleep_watch import SleepWatch
from lullm.errors import EngineAsleepError, EngineDeadError, InvalidRequestError, LullmError, WakeUpError
from lullm.log import get_logger
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import OutputKind

logger = get_logger(__name__)


class Admission:
    """Lets requests into one engine, and owns the streams of those that are in."""

    def __init__(self, engine: LLMEngine, mailbox: Mailbox, watch: SleepWatch, idle: IdleConfig):
        self._engine = engine
        self._mailbox = mailbox
        self._watch = watch
        self._wakes_by_request = idle.wakes_by_request
        self._wake_timeout = idle.wake_timeout
        self._max_num_waiting = idle.max_num_wake_waiting
        self._num_untaken = 0  # requests that were sent and not taken in; changes under the lock
        self._lock = threading.Lock()
        # Owned by the engine's thread:
        self._streams: dict[str, OutputStream] = {}
        self._parked: list[tuple[GenerateRequest, OutputStream]] = []
        self._failed_wake: tuple[float, str] | None = None  # when, and why

    # -- on event loops ------------------------------------------------------------------------------------------

    async def outputs(self, request: GenerateRequest, keep_alive: float | None) -> AsyncGenerator[EngineOutput, None]:
        """Outputs of one request; closing the generator aborts it. Raises as `EngineClient.stream` does."""
        self._mailbox.check_running()
        self._check_keep_alive(keep_alive)
        backlog = Backlog(is_delta=request.params.output_kind is OutputKind.DELTA)
        stream = OutputStream(asyncio.get_running_loop(), time.monotonic(), keep_alive, backlog)
        finished = False
        try:
            async with self._waiting_to_enter(stream):
                self._mailbox.send(lambda: self.admit(request, stream))
            while not finished:
                item = await stream.items.get()
                finished = isinstance(item, LullmError) or item.finished
                if isinstance(item, LullmError):
                    raise item
                yield item
        finally:
            if not finished:
                stream.is_closed = True
                with contextlib.suppress(EngineDeadError):
                    self._mailbox.send(lambda: self._abort(request.request_id, stream))

    @contextlib.asynccontextmanager
    async def _waiting_to_enter(self, stream: OutputStream) -> AsyncIterator[None]:
        """Around the sending of a request: ends once the engine has taken or refused it, which may have to wake first.

        Raises:
            EngineAsleepError: too many requests wait for that already, or the wait is too long.
        """
        if not self._wakes_by_request:
            yield
            return
        with self._lock:
            if self._num_untaken >= self._max_num_waiting and self._watch.is_away:
                raise EngineAsleepError(f"{self._num_untaken} requests wait already for the engine to wake up")
            self._num_untaken += 1
        try:
            yield
            async with asyncio.timeout(self._wake_timeout):
                await stream.is_taken.wait()
        except TimeoutError:
            raise EngineAsleepError(f"the engine did not wake up within {self._wake_timeout:g} s") from None
        finally:
            with self._lock:
                self._num_untaken -= 1

    def _check_keep_alive(self, keep_alive: float | None) -> None:
        if keep_alive is None:
            return
        if not self._watch.has_ladder:
            raise InvalidRequestError("keep_alive needs an engine with a sleep_after (--sleep-after)", "keep_alive")
        if not math.isfinite(keep_alive):
            raise InvalidRequestError(f"keep_alive must be a finite number of seconds, not {keep_alive}", "keep_alive")

    # -- on the engine's thread ----------------------------------------------------------------------------------

    def admit(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Hand a request to the engine, which is woken for it; or park, or refuse it."""
        if stream.is_closed:
            return
        try:
            if self._must_wait():
                self._parked.append((request, stream))
                return
            if self._wakes_by_request and self._engine.is_sleeping():
                self._wake_for(stream)
            self._engine.add_processed(request)
            self._streams[request.request_id] = stream
            if self._wakes_by_request:  # else no caller waits for that, and the loop is spared a wake-up
                stream.confirm()
            self._watch.count_request(stream.keep_alive)
        except LullmError as error:
            stream.fail(error)
        except Exception as error:
            stream.fail(unforeseen(error))
            raise

    def _must_wait(self) -> bool:
        """Whether a request waits for the end of a pause, or for a sleep that waits. Raises if it may not wait."""
        if self._watch.has_waiting_sleeps:
            if not self._wakes_by_request:
                raise EngineAsleepError("the engine is going to sleep once its running requests have ended")
            return True
        if self._wakes_by_request and self._engine.sleep_state == "paused":
            self._mailbox.check_running()
            return True
        return False

    def _wake_for(self, stream: OutputStream) -> None:
        # All requests that waited for a wake-up that failed get its error; one try each would add up their times.
        if self._failed_wake is not None and stream.sent_s <= self._failed_wake[0]:
            raise WakeUpError(self._failed_wake[1])
        try:
            self._watch.wake_up(None, "request")
        except WakeUpError as error:
            logger.error("a request could not wake the engine: %s", error)
            self._failed_wake = (time.monotonic(), str(error))
            raise

    @property
    def has_parked(self) -> bool:
        """Whether requests wait for the end of a pause or of a sleep."""
        return bool(self._parked)

    def admit_parked(self) -> None:
        """Admit the requests that need not wait any more; forget those whose readers have gone."""
        if self._parked and not self._watch.has_waiting_sleeps and self._engine.sleep_state != "paused":
            for _ in range(len(self._parked)):
                self.admit(*self._parked.pop(0))
        self._parked = [(request, stream) for request, stream in self._parked if not stream.is_closed]

    def deliver(self, outputs: list[EngineOutput]) -> None:
        """Hand outputs over, with one wake-up per event loop: 200 streams must not cost 200 wake-ups a step."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[OutputStream, EngineOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            by_loop.setdefault(stream.loop, []).append((stream, output))
        for loop, items in by_loop.items():
            call_on(loop, functools.partial(_put_all, items))

    def refuse_parked(self, error: EngineDeadError) -> None:
        """Fail the requests that wait to enter: the engine will not wake up any more."""
        parked, self._parked = self._parked, []
        for _, stream in parked:
            stream.fail(error)

    def fail_all(self, error: EngineDeadError) -> None:
        """Fail every request, in the engine or not: no stream stays open."""
        self.refuse_parked(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _abort(self, request_id: str, stream: OutputStream) -> None:
        # Another request may have taken the id since; it must not be aborted for this one.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.abort_request(request_id, wants_output=False)


def _put_all(items: list[tuple[OutputStream, EngineOutput]]) -> None:
    for stream, output in items:
        stream.items.put_nowait(output)
