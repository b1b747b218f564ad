"""SleepWatch: everything that puts one engine to sleep or wakes it, on the engine's thread.

    a call           sleeps and wakes at once; with mode 'wait', once the running requests have ended
    the ladder       sleeps when nothing has run for long enough, and deeper later on
    a request        wakes (`wakes_by_request`), or is refused

A request that wakes the engine is taken in the same breath, so that no other call can come between. One that meets a
pause, or a sleep that waits for running requests, waits with it: whoever paused the engine has a reason, and the
reason is his to end.
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from lullm.config.engine import EngineConfig
from lullm.config.sleep_after import SleepRung
from lullm.engine.ladder import SleepLadder
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.mailbox import Call, OutputStream
from lullm.engine.protocol import SleepCause, SleepObserver
from lullm.errors import EngineAsleepError, EngineDeadError, LullmError, SleepCancelledError, WakeUpError
from lullm.log import get_logger
from lullm.types.request import GenerateRequest
from lullm.types.sleep import SleepOptions, SleepReport, WakeReport

logger = get_logger(__name__)

_MAX_WAIT_S = 3600.0  # of one wait for commands; a ladder may be longer


class SleepWatch:
    """The sleep of one engine. Methods: on the engine's thread, but for those that say otherwise.

    Args:
        config: the one with the options that need a thread. enter: hands a request to the engine. clock: seconds, such
        as `time.monotonic`.
    """

    def __init__(
        self,
        engine: LLMEngine,
        config: EngineConfig,
        enter: Callable[[GenerateRequest, OutputStream], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._engine = engine
        self._wakes_by_request = config.wakes_by_request
        self._has_prefix_cache = config.enable_prefix_caching
        self._enter = enter
        self._clock = clock
        self.ladder = SleepLadder(config.sleep_rungs, clock)
        self.observers: list[SleepObserver] = []
        self._waiting_sleeps: list[Call[SleepReport]] = []
        self._parked: list[tuple[GenerateRequest, OutputStream]] = []
        self._is_falling_asleep = False
        self._failed_wake: tuple[float, str] | None = None  # when, and why
        self._end: EngineDeadError | None = None

    @property
    def is_away(self) -> bool:
        """Whether a request would have to wait, or be refused, from when a sleep begins. From any thread."""
        return self._is_falling_asleep or bool(self._waiting_sleeps) or self._engine.is_sleeping()

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """The rung that comes next and the seconds until it; None: nothing will happen by itself. From any thread."""
        return self.ladder.next() if self._may_descend() else None

    # -- calls ---------------------------------------------------------------------------------------------------

    def sleep(self, options: SleepOptions, cause: SleepCause = "call") -> SleepReport:
        """Put the engine to sleep now. Raises as `LLMEngine.sleep` does; also EngineDeadError during the shutdown."""
        self.check_running()
        self._is_falling_asleep = True
        try:
            report = self._engine.sleep(**dataclasses.asdict(options))
        except (OSError, WakeUpError):  # the latter: a backup that was to move is damaged
            self._tell(lambda observer: observer.sleep_failed(cause))
            raise
        finally:
            self._is_falling_asleep = False
        if cause == "call":
            self._reset_ladder()
        if report.tags or options.level == 0:
            self._tell(lambda observer: observer.slept(report, cause))
        return report

    def begin_sleep(self, call: Call[SleepReport], options: SleepOptions) -> None:
        """Run `call`, which sleeps so, now; or with mode 'wait' once the running requests have ended."""
        if options.mode != "wait" or self._engine.is_sleeping() or not self._engine.has_unfinished_requests():
            call.run()
            return
        try:
            self._engine.check_health()
            self._engine.lifecycle.check(options)
            self.check_running()
        except LullmError as error:
            call.fail(error)
        else:
            self._waiting_sleeps.append(call)

    def wake_up(self, tags: Sequence[str] | None, cause: SleepCause = "call") -> WakeReport:
        """Bring back `tags`, and cancel the sleeps that wait. Raises as `LLMEngine.wake_up` does."""
        self.check_running()
        was_sleeping = self._engine.is_sleeping()
        try:
            report = self._engine.wake_up(tags)
        except WakeUpError:
            self._tell(lambda observer: observer.wake_up_failed(cause))
            raise
        if cause == "call":
            self._reset_ladder()
        if report.tags or (was_sleeping and not self._engine.is_sleeping()):
            self._tell(lambda observer: observer.woke(report, cause))
        self._fail_waiting_sleeps(SleepCancelledError("wake_up was called before the running requests had ended"))
        return report

    def resume(self) -> None:
        """End a pause. Raises EngineAsleepError if memory is released: that is not a pause any more."""
        if self._engine.sleeping_tags:
            tags = ", ".join(self._engine.sleeping_tags)
            raise EngineAsleepError(f"the engine is not only paused, it is asleep ({tags} released); call wake_up()")
        self.wake_up(None)

    def check_running(self) -> None:
        """Return if the engine is not being shut down. Raises EngineDeadError otherwise."""
        # A sleep during the drain would keep the very requests that the drain waits for.
        if self._end is not None:
            raise self._end

    def stop(self, error: EngineDeadError) -> None:
        """From now on nothing sleeps or wakes; whoever waits for that gets `error`. Idempotent."""
        self._end = error
        self._fail_waiting_sleeps(error)
        parked, self._parked = self._parked, []
        for _, stream in parked:
            stream.fail(error)

    # -- requests ------------------------------------------------------------------------------------------------

    def admit(self, request: GenerateRequest, stream: OutputStream) -> None:
        """Hand a request to the engine, which is woken for it; or park, or refuse it."""
        if stream.is_closed:
            return
        try:
            if self._has_waiting_sleeps():
                if not self._wakes_by_request:
                    raise EngineAsleepError("the engine is going to sleep once its running requests have ended")
                self._parked.append((request, stream))
            elif self._wakes_by_request and self._engine.sleep_state == "paused":
                self.check_running()
                self._parked.append((request, stream))
            else:
                if self._wakes_by_request and self._engine.is_sleeping():
                    self._wake_for(stream)
                self._enter(request, stream)
                self.ladder.busy()
                self.ladder.keep_alive(stream.keep_alive)
        except LullmError as error:
            stream.fail(error)
        except Exception as error:
            stream.fail(EngineDeadError(f"engine failed: {type(error).__name__}: {error}"))
            raise

    def _wake_for(self, stream: OutputStream) -> None:
        # Those who waited for a wake-up that failed all hear of it; each trying again would take the time of each.
        if self._failed_wake is not None and stream.sent_s <= self._failed_wake[0]:
            raise WakeUpError(self._failed_wake[1])
        try:
            self.wake_up(None, "request")
        except WakeUpError as error:
            logger.error("a request could not wake the engine: %s", error)
            self._failed_wake = (self._clock(), str(error))
            raise

    # -- between steps -------------------------------------------------------------------------------------------

    def tend(self, is_quiet: bool) -> None:
        """Run the sleeps and requests whose time has come. `is_quiet`: no command waits that could be a request."""
        self._run_waiting_sleeps()
        if self._parked and not self._has_waiting_sleeps() and self._engine.sleep_state != "paused":
            for _ in range(len(self._parked)):
                self.admit(*self._parked.pop(0))
        self._parked = [(request, stream) for request, stream in self._parked if not stream.is_closed]
        if self._engine.has_unfinished_requests() or self._parked:
            self.ladder.busy()
        else:
            self.ladder.idle()
            if is_quiet and self._may_descend():
                self._descend()

    def wait_s(self) -> float | None:
        """Seconds that the thread may wait for a command before it must `tend` again; None: any time."""
        step = self.next_sleep
        return None if step is None else min(step[1], _MAX_WAIT_S)

    def _may_descend(self) -> bool:
        # An engine that is paused, or awake in part, is in somebody's hands: new weights are on their way into it.
        return self._engine.sleep_state in ("awake", "weights_offloaded", "discard_all") and self._end is None

    def _descend(self) -> None:
        rung = self.ladder.due()
        if rung is None:
            return
        # Whoever comes back finds his conversation: its prefix is in the cache, not in a request. If there is no room
        # to keep that, the memory is still wanted back.
        for keep_prefix_cache in (True, False) if rung.level == 1 and self._has_prefix_cache else (False,):
            idle_s = self.ladder.idle_s
            try:
                report = self.sleep(SleepOptions(rung.level, "keep", None, rung.backup, keep_prefix_cache), "idle")
            except (LullmError, OSError) as error:
                # Tried again at the next rung, or after the next request: a full disk does not empty itself soon.
                logger.warning("the idle engine could not go to sleep: %s", error)
            else:
                if report.tags:
                    logger.info("that was by itself, after %.0f s without a request", idle_s)
                return

    def _reset_ladder(self) -> None:
        self.ladder.reset()
        state = self._engine.sleep_state
        if state == "discard_all":
            self.ladder.skip(lambda rung: True)
        elif state == "weights_offloaded":
            # Above all, what was put on disk by hand is not brought back to RAM for being idle.
            self.ladder.skip(lambda rung: rung.level == 1 and rung.backup != "disk")

    def _has_waiting_sleeps(self) -> bool:
        return any(not call.answer.cancelled() for call in self._waiting_sleeps)

    def _run_waiting_sleeps(self) -> None:
        if not self._engine.has_unfinished_requests():
            calls, self._waiting_sleeps = self._waiting_sleeps, []
            for call in calls:
                call.run()
        elif self._engine.is_sleeping():
            error = SleepCancelledError("another call put the engine to sleep before the running requests had ended")
            self._fail_waiting_sleeps(error)

    def _fail_waiting_sleeps(self, error: LullmError) -> None:
        calls, self._waiting_sleeps = self._waiting_sleeps, []
        for call in calls:
            call.fail(error)

    def _tell(self, tell: Callable[[SleepObserver], None]) -> None:
        for observer in self.observers:
            tell(observer)
