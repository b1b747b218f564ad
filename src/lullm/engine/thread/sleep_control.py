"""SleepControl: puts one engine to sleep and wakes it, on the engine's thread.

a call           sleeps and wakes at once; with mode 'wait' it sleeps once the running requests have ended
the ladder       sleeps after idle time, and deeper later on
a request        wakes (`Admission`)
"""

import dataclasses
import time
from collections.abc import Callable, Sequence

from lullm.config.option.sleep_after import SleepRung
from lullm.config.resolved import IdleConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.ladder import SleepLadder
from lullm.engine.thread.mailbox import EngineCall, Mailbox, ThreadState
from lullm.errors import EngineAsleepError, LullmError, SleepCancelledError, SleepError, WakeUpError
from lullm.log import get_logger
from lullm.types.sleep import SleepCause, SleepEvent, SleepOptions, SleepReport, WakeReport

logger = get_logger(__name__)

_MAX_WAIT_S = 3600.0  # longest wait for a command; a ladder may be longer


class SleepControl:
    """The sleep of one engine. Methods: on the engine's thread, unless they say otherwise.

    Args:
        clock: seconds, such as `time.monotonic`.
    """

    def __init__(
        self,
        engine: LLMEngine,
        mailbox: Mailbox,
        idle: IdleConfig,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._engine = engine
        self._mailbox = mailbox
        self._has_prefix_cache = engine.config.enable_prefix_caching
        self._ladder = SleepLadder(idle.rungs, clock)
        self._observers: list[Callable[[SleepEvent], None]] = []
        self._waiting_sleeps: list[EngineCall[SleepReport]] = []
        self._is_falling_asleep = False

    # -- from any thread -----------------------------------------------------------------------------------------

    def observe(self, observer: Callable[[SleepEvent], None]) -> None:
        """Call `observer` at every sleep and wake-up from now on."""
        self._observers.append(observer)

    @property
    def is_away(self) -> bool:
        """Whether the engine sleeps or a sleep has begun, so that a request would wait or be refused."""
        return self._is_falling_asleep or bool(self._waiting_sleeps) or self._engine.is_sleeping()

    @property
    def idle_s(self) -> float:
        """Seconds since the last request ended; 0 while one runs."""
        return self._ladder.idle_s

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        """The next rung and the seconds until it; None: the engine will not sleep by itself."""
        return self._ladder.next() if self._may_descend() else None

    # -- calls ---------------------------------------------------------------------------------------------------

    def sleep(self, options: SleepOptions, cause: SleepCause = "call") -> SleepReport:
        """Put the engine to sleep now. Raises as `LLMEngine.sleep` does; also EngineDeadError during the shutdown."""
        # A sleep during the drain would keep the requests that the drain waits for.
        self._mailbox.check_running()
        self._is_falling_asleep = True
        try:
            report = self._engine.sleep(**dataclasses.asdict(options))
        except SleepError:
            self._tell(SleepEvent(cause, failed="sleep"))
            raise
        finally:
            self._is_falling_asleep = False
        if cause == "call":
            self._reset_ladder()
        if report.tags or options.level == 0:
            self._tell(SleepEvent(cause, slept=report))
        return report

    def begin_sleep(self, call: EngineCall[SleepReport], options: SleepOptions) -> None:
        """Run `call`, a sleep with `options`, now; with mode 'wait' once the running requests have ended."""
        if options.mode != "wait" or self._engine.is_sleeping() or not self._engine.has_unfinished_requests():
            call.run()
            return
        try:
            self._engine.check_health()
            self._engine.lifecycle.check(options)
            self._mailbox.check_running()
        except LullmError as error:
            call.fail(error)
        else:
            self._waiting_sleeps.append(call)

    def wake_up(self, tags: Sequence[str] | None, cause: SleepCause = "call") -> WakeReport:
        """Restore the memory of `tags`, and cancel waiting sleeps. Raises as `LLMEngine.wake_up` does."""
        self._mailbox.check_running()
        was_sleeping = self._engine.is_sleeping()
        try:
            report = self._engine.wake_up(tags)
        except WakeUpError:
            self._tell(SleepEvent(cause, failed="wake_up"))
            raise
        if cause == "call":
            self._reset_ladder()
        if report.tags or (was_sleeping and not self._engine.is_sleeping()):
            self._tell(SleepEvent(cause, woke=report))
        error = SleepCancelledError("wake_up was called before the running requests had ended")
        self.cancel_waiting_sleeps(error)
        return report

    def resume(self) -> None:
        """End a pause. Raises EngineAsleepError: memory is released, so this is not a pause."""
        if self._engine.sleeping_tags:
            tags = ", ".join(self._engine.sleeping_tags)
            raise EngineAsleepError(f"the engine is not only paused, it is asleep ({tags} released); call wake_up()")
        self.wake_up(None)

    def cancel_waiting_sleeps(self, error: LullmError) -> None:
        """Answer the sleeps that wait for running requests with `error`."""
        calls, self._waiting_sleeps = self._waiting_sleeps, []
        for call in calls:
            call.fail(error)

    @property
    def has_waiting_sleeps(self) -> bool:
        """Whether a sleep of mode 'wait' waits for running requests to end."""
        return any(not call.answer.cancelled() for call in self._waiting_sleeps)

    # -- news for the ladder -------------------------------------------------------------------------------------

    def count_request(self, keep_alive: float | None) -> None:
        """A request has entered. `keep_alive`: seconds that the engine stays awake after it; None: as configured."""
        self._ladder.busy()
        self._ladder.keep_alive(keep_alive)

    def restart_clock(self) -> None:
        """A call uses the engine: idle time starts again, and the last request's `keep_alive` ends."""
        self._ladder.reset()

    # -- between steps -------------------------------------------------------------------------------------------

    def run_waiting_sleeps(self) -> None:
        """Run the sleeps of mode 'wait' once no request is left; cancel them if the engine sleeps already."""
        if not self._engine.has_unfinished_requests():
            calls, self._waiting_sleeps = self._waiting_sleeps, []
            for call in calls:
                call.run()
        elif self._engine.is_sleeping():
            error = SleepCancelledError("another call put the engine to sleep before the running requests had ended")
            self.cancel_waiting_sleeps(error)

    def run_due(self, is_busy: bool, is_quiet: bool) -> None:
        """Sleep by the rung of the ladder that is due, if any.

        Args:
            is_busy: requests run or wait.
            is_quiet: no command waits. A command could be a request.
        """
        if is_busy:
            self._ladder.busy()
            return
        self._ladder.idle()
        if is_quiet and self._may_descend():
            self._descend()

    def wait_s(self) -> float | None:
        """Seconds that the thread may wait for a command before the next `run_due`; None: no limit."""
        step = self.next_sleep
        return None if step is None else min(step[1], _MAX_WAIT_S)

    def _may_descend(self) -> bool:
        # Otherwise a call has paused the engine or woken part of it, and may be loading new weights.
        is_whole = self._engine.sleep_state in ("awake", "weights_offloaded", "discard_all")
        return is_whole and self._mailbox.state is ThreadState.RUNNING

    def _descend(self) -> None:
        rung = self._ladder.due()
        if rung is None:
            return
        # The next turn of a conversation finds its prefix in the cache. Without room for the cache the engine sleeps
        # anyway.
        for keep_prefix_cache in (True, False) if rung.level == 1 and self._has_prefix_cache else (False,):
            idle_s = self._ladder.idle_s
            try:
                report = self.sleep(SleepOptions(rung.level, "keep", None, rung.backup, keep_prefix_cache), "idle")
            except LullmError as error:
                # Tried again at the next rung, or after the next request: a full disk stays full for a while.
                logger.warning("the idle engine could not go to sleep: %s", error)
            else:
                if report.tags:
                    logger.info("asleep by itself, after %.0f s without a request", idle_s)
                return

    def _reset_ladder(self) -> None:
        self._ladder.reset()
        state = self._engine.sleep_state
        if state == "discard_all":
            self._ladder.skip(lambda rung: True)
        elif state == "weights_offloaded":
            # A call may have put the backup on disk; an idle sleep must not move it to RAM.
            self._ladder.skip(lambda rung: rung.level == 1 and rung.backup != "disk")

    def _tell(self, event: SleepEvent) -> None:
        for observer in self._observers:
            observer(event)
