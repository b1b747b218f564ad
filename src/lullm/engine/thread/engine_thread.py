"""EngineThread: the one thread that owns an `LLMEngine`: it steps, and between steps it runs the commands of others.

Commands come through a `Mailbox`; outputs leave through `Admission`. The step loop takes no lock. While the engine
sleeps the thread runs commands only; `SleepWatch` says when it sleeps and wakes.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.idle_trim import IdleTrim
from lullm.engine.thread.mailbox import Mailbox, ThreadState
from lullm.engine.thread.sleep_watch import SleepWatch
from lullm.errors import EngineDeadError
from lullm.log import get_logger

logger = get_logger(__name__)

TOUCH_PAUSE_S = 0.02
"""Idle seconds before each piece of memory is taken ahead (up to 10 ms), so that a client's next request meets none."""


class EngineThread:
    """Runs from its construction until `stop`, or until the engine fails; then it has shut the engine down.

    Args:
        on_turn: called on the thread after each step and after commands, with whether requests run or wait.
    """

    def __init__(
        self,
        engine: LLMEngine,
        mailbox: Mailbox,
        watch: SleepWatch,
        admission: Admission,
        on_turn: Callable[[bool], None] | None = None,
    ):
        self._engine = engine
        self._mailbox = mailbox
        self._watch = watch
        self._admission = admission
        self._on_turn = on_turn
        self._trim = IdleTrim(time.monotonic)
        self._lacks_memory = True  # for the next request, as far as is known
        self._thread = threading.Thread(target=self._run, name="lullm-engine", daemon=True)
        self._thread.start()

    def stop(self, drain: bool) -> None:
        """Take no new requests; end once the running ones have ended (`drain`) or been aborted. Does not wait."""
        self._mailbox.drain(lambda: self._stop(drain))

    def join(self) -> None:
        """Wait for the end."""
        self._thread.join()

    def _run(self) -> None:
        failure = None
        self._engine.model_executor.observe_loss(self._look_after_workers)
        try:
            while not self._is_done():
                self._turn()
        except EngineDeadError as error:
            failure = error
        except Exception as error:
            logger.exception("the engine's thread failed")
            failure = EngineDeadError(f"engine failed: {error}")
        finally:
            self._end(failure)

    def _look_after_workers(self) -> None:
        """Have an idle thread notice that a worker is lost. From any thread."""

        def check() -> None:
            if self._mailbox.state in (ThreadState.RUNNING, ThreadState.DRAINING):
                self._engine.check_health()

        with contextlib.suppress(EngineDeadError):  # it has ended
            self._mailbox.send(check)

    def _is_done(self) -> bool:
        is_draining = self._mailbox.state is ThreadState.DRAINING
        return is_draining and self._mailbox.is_empty and not self._engine.has_unfinished_requests()

    def _turn(self) -> None:
        """Run the commands that have come, one step, and the sleeps and requests that waited for its end."""
        engine, watch, mailbox = self._engine, self._watch, self._mailbox
        if engine.is_sleeping() or not engine.has_unfinished_requests():
            self._wait()
        mailbox.run_all()
        if engine.is_sleeping():
            self._admission.deliver(engine.take_pending())
        elif engine.has_unfinished_requests():
            self._admission.deliver(engine.step())
        watch.run_waiting_sleeps()
        self._admission.admit_parked()
        is_busy = engine.has_unfinished_requests() or self._admission.has_parked
        watch.run_due(is_busy, is_quiet=mailbox.is_empty)
        if is_busy:
            self._trim.busy()
        else:
            self._trim.idle()
        if self._on_turn is not None:
            self._on_turn(is_busy)

    def _wait(self) -> None:
        """Run the next command once it comes, or return when something else is due. Meanwhile take memory ahead."""
        is_awake = not self._engine.is_sleeping()
        pause_s = TOUCH_PAUSE_S if self._lacks_memory and is_awake else None
        times_s = (self._watch.wait_s(), self._trim.wait_s(), pause_s)
        if self._mailbox.wait(min((time_s for time_s in times_s if time_s is not None), default=None)):
            self._lacks_memory = True
        elif is_awake:
            self._lacks_memory = self._engine.touch_ahead()

    def _stop(self, drain: bool) -> None:
        error = EngineDeadError("the engine has been shut down")
        self._watch.cancel_waiting_sleeps(error)
        self._admission.refuse_parked(error)
        if not drain or self._engine.is_sleeping():  # what a sleeping engine keeps cannot end
            for request_id in self._engine.unfinished_request_ids():
                self._engine.abort_request(request_id)

    def _end(self, failure: EngineDeadError | None) -> None:
        """Shut the engine down; fail what is still open, and what was sent but has not run: no caller waits forever."""
        error = self._mailbox.close(failure)
        try:
            self._engine.shutdown()
        except Exception:  # what broke the engine may break its end
            logger.exception("the engine's memory could not be given back")
        self._watch.cancel_waiting_sleeps(error)
        while not self._mailbox.is_empty:
            try:
                self._mailbox.run_all()
            except Exception:  # the caller has it as well, and the commands behind it must still run
                logger.exception("a call on the engine that has ended failed")
        self._admission.fail_all(error)
