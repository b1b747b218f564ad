"""EngineThread: the one thread that owns an `LLMEngine`. It runs steps, and callers' commands between steps.

Commands come through a `Mailbox`; outputs leave through `Admission`. The step loop takes no lock. While the engine
sleeps the thread runs commands only; `SleepControl` puts the engine to sleep and wakes it.
"""

import contextlib
import threading
import time
from collections.abc import Callable

from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.idle_trim import IdleTrim
from lullm.engine.thread.mailbox import Mailbox, ThreadState
from lullm.engine.thread.sleep_control import SleepControl
from lullm.errors import EngineDeadError
from lullm.log import get_logger

logger = get_logger(__name__)

TOUCH_PAUSE_S = 0.02
"""Idle seconds before each touch of memory ahead (up to 10 ms), so that it does not delay a client's next request."""


class EngineThread:
    """Runs from its construction until `stop`, or until the engine fails; then it shuts the engine down.

    Args:
        on_turn: called on the thread after each step and after commands; its argument says whether requests run or
            wait.
    """

    def __init__(
        self,
        engine: LLMEngine,
        mailbox: Mailbox,
        sleep_control: SleepControl,
        admission: Admission,
        on_turn: Callable[[bool], None] | None = None,
    ):
        self._engine = engine
        self._mailbox = mailbox
        self._sleep_control = sleep_control
        self._admission = admission
        self._on_turn = on_turn
        self._trim = IdleTrim(time.monotonic)
        self._lacks_memory = True  # the next request may need memory that was not touched
        self._thread = threading.Thread(target=self._run, name="lullm-engine", daemon=True)
        self._thread.start()

    def stop(self, drain: bool) -> None:
        """Take no new requests; end after the running ones (`drain`), or abort them. Does not wait."""
        self._mailbox.drain(lambda: self._stop(drain))

    def join(self) -> None:
        """Wait for the thread's end."""
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
        """Have an idle thread check its workers. From any thread."""

        def check() -> None:
            if self._mailbox.state in (ThreadState.RUNNING, ThreadState.DRAINING):
                self._engine.check_health()

        with contextlib.suppress(EngineDeadError):  # the thread has ended
            self._mailbox.send(check)

    def _is_done(self) -> bool:
        is_draining = self._mailbox.state is ThreadState.DRAINING
        return is_draining and self._mailbox.is_empty and not self._engine.has_unfinished_requests()

    def _turn(self) -> None:
        """Run the commands that have come, one step, and the sleeps and requests that waited for its end."""
        engine, sleep_control, mailbox = self._engine, self._sleep_control, self._mailbox
        if engine.is_sleeping() or not engine.has_unfinished_requests():
            self._wait()
        mailbox.run_all()
        if engine.is_sleeping():
            self._admission.deliver(engine.take_pending())
        elif engine.has_unfinished_requests():
            self._admission.deliver(engine.step())
        sleep_control.run_waiting_sleeps()
        self._admission.admit_parked()
        is_busy = engine.has_unfinished_requests() or self._admission.has_parked
        sleep_control.run_due(is_busy, is_quiet=mailbox.is_empty)
        if is_busy:
            self._trim.busy()
        else:
            self._trim.idle()
        if self._on_turn is not None:
            self._on_turn(is_busy)

    def _wait(self) -> None:
        """Run the next command once it comes, or return when another task is due. Touches memory ahead meanwhile."""
        is_awake = not self._engine.is_sleeping()
        pause_s = TOUCH_PAUSE_S if self._lacks_memory and is_awake else None
        times_s = (self._sleep_control.wait_s(), self._trim.wait_s(), pause_s)
        if self._mailbox.wait(min((time_s for time_s in times_s if time_s is not None), default=None)):
            self._lacks_memory = True
        elif is_awake:
            self._lacks_memory = self._engine.touch_ahead()

    def _stop(self, drain: bool) -> None:
        error = EngineDeadError("the engine has been shut down")
        self._sleep_control.cancel_waiting_sleeps(error)
        self._admission.refuse_parked(error)
        if not drain or self._engine.is_sleeping():  # requests that a sleeping engine keeps cannot end
            for request_id in self._engine.unfinished_request_ids():
                self._engine.abort_request(request_id)

    def _end(self, failure: EngineDeadError | None) -> None:
        """Shut the engine down. Fail all open requests and commands that have not run: no caller may wait forever."""
        error = self._mailbox.close(failure)
        try:
            self._engine.shutdown()
        except Exception:  # an engine that failed may fail again here
            logger.exception("the engine's memory could not be given back")
        self._sleep_control.cancel_waiting_sleeps(error)
        while not self._mailbox.is_empty:
            try:
                self._mailbox.run_all()
            except Exception:  # the caller has the error, and later commands must still run
                logger.exception("a call on the engine that has ended failed")
        self._admission.fail_all(error)
