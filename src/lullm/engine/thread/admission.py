"""Admission: decides which requests may enter the engine, and delivers their outputs.

    the engine is awake                        the request enters
    it sleeps                                  the request wakes it and enters, or is refused
    it is paused, or a sleep waits its turn    the request waits, or is refused

`wakes_by_request` says whether requests wake the engine, and so may wait. A request wakes the engine and enters in one
command, so no other call comes in between. A pause ends by the call that began it or by `wake_up`, and so does a sleep
that waits for running requests; a request waits for that end.
"""

import time
from collections.abc import Sequence

from lullm.config.resolved import IdleConfig
from lullm.engine.caller.stream import Outlet, Stream
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.mailbox import Mailbox, unforeseen
from lullm.engine.thread.sleep_control import SleepControl
from lullm.errors import EngineAsleepError, EngineDeadError, LullmError, WakeUpError
from lullm.log import get_logger
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest

logger = get_logger(__name__)


class Admission:
    """Lets requests into one engine, and owns the streams of those that are in."""

    def __init__(self, engine: LLMEngine, mailbox: Mailbox, sleep_control: SleepControl, idle: IdleConfig):
        self._engine = engine
        self._mailbox = mailbox
        self._sleep_control = sleep_control
        self._wakes_by_request = idle.wakes_by_request
        # Owned by the engine's thread:
        self._streams: dict[str, Stream] = {}
        self._parked: list[tuple[GenerateRequest, Stream]] = []
        self._failed_wake: tuple[float, str] | None = None  # (time, reason)

    # -- from any thread: a `Door` -------------------------------------------------------------------------------

    def check_running(self) -> None:
        """Check that the thread takes requests of the caller.

        Raises:
            EngineDeadError: it takes no requests any more, for this reason.
            InvalidRequestError: it waits for the caller.
        """
        self._mailbox.check_running()
        self._mailbox.feeding.check()

    def send(self, arrivals: Sequence[tuple[GenerateRequest, Stream]]) -> None:
        """Have the thread admit requests. Raises EngineDeadError."""

        def admit_all() -> None:
            waiting = list(arrivals)
            try:
                while waiting:
                    self.admit(*waiting.pop(0))
            except Exception as error:  # it ends the thread
                for _, stream in waiting:
                    stream.fail(unforeseen(error))
                raise

        self._mailbox.send(admit_all)

    def withdraw(self, request: GenerateRequest, stream: Stream) -> None:
        """Have the thread abort a request whose reader has gone. Raises EngineDeadError."""
        self._mailbox.send(lambda: self._abort(request.request_id, stream))

    @property
    def is_away(self) -> bool:
        """Whether the engine sleeps or a sleep has begun, so that a request would wait or be refused."""
        return self._sleep_control.is_away

    # -- on the engine's thread ----------------------------------------------------------------------------------

    def admit(self, request: GenerateRequest, stream: Stream) -> None:
        """Give a request to the engine, waking it if it sleeps; or make the request wait, or refuse it."""
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
            if self._wakes_by_request:  # otherwise no caller waits for it, and the loop is not woken
                stream.confirm()
            self._sleep_control.count_request(stream.keep_alive)
        except LullmError as error:
            stream.fail(error)
        except Exception as error:
            stream.fail(unforeseen(error))
            raise

    def _must_wait(self) -> bool:
        """Whether a request waits for the end of a pause or of a waiting sleep. Raises if it may not wait."""
        if self._sleep_control.has_waiting_sleeps:
            if not self._wakes_by_request:
                raise EngineAsleepError("the engine is going to sleep once its running requests have ended")
            return True
        if self._wakes_by_request and self._engine.sleep_state == "paused":
            self._mailbox.check_running()
            return True
        return False

    def _wake_for(self, stream: Stream) -> None:
        # Requests that waited for a failed wake-up get its error. One attempt for each would add up their times.
        if self._failed_wake is not None and stream.sent_s <= self._failed_wake[0]:
            raise WakeUpError(self._failed_wake[1])
        try:
            self._sleep_control.wake_up(None, "request")
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
        if self._parked and not self._sleep_control.has_waiting_sleeps and self._engine.sleep_state != "paused":
            for _ in range(len(self._parked)):
                self.admit(*self._parked.pop(0))
        self._parked = [(request, stream) for request, stream in self._parked if not stream.is_closed]

    def deliver(self, outputs: list[EngineOutput]) -> None:
        """Deliver the outputs of a step; those with the same outlet leave together."""
        by_outlet: dict[Outlet, list[tuple[Stream, EngineOutput]]] = {}
        for output in outputs:
            stream = self._streams.get(output.request_id)
            if stream is None:
                continue
            if output.finished:
                del self._streams[output.request_id]
            by_outlet.setdefault(stream.outlet, []).append((stream, output))
        for outlet, items in by_outlet.items():
            outlet.deliver(items)

    def refuse_parked(self, error: EngineDeadError) -> None:
        """Fail the requests that wait to enter, since the engine will not wake up any more."""
        parked, self._parked = self._parked, []
        for _, stream in parked:
            stream.fail(error)

    def fail_all(self, error: EngineDeadError) -> None:
        """Fail every request, in the engine or not, so that no stream stays open."""
        self.refuse_parked(error)
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    def _abort(self, request_id: str, stream: Stream) -> None:
        # Another request may have the id by now; it must not be aborted.
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.abort_request(request_id, wants_output=False)
