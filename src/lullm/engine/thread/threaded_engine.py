"""ThreadedEngine: an `LLMEngine` with its thread, mailbox, admission and sleep, wherever its callers are."""

from collections.abc import Callable, Mapping
from typing import Any

from lullm.config.resolved import IdleConfig
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.engine_thread import EngineThread
from lullm.engine.thread.mailbox import Command, EngineCall, Mailbox
from lullm.engine.thread.sleep_control import SleepControl
from lullm.types.sleep import SleepOptions

_OF_SLEEP_CONTROL = ("wake_up", "resume")
_FOREIGN = ("collective_rpc", "update_weights")
"""Calls that run the caller's own code: their errors are not the engine's."""


class ThreadedEngine:
    """One engine, and the parts that its thread works with."""

    def __init__(self, engine: LLMEngine, idle: IdleConfig):
        self.engine = engine
        self.mailbox = Mailbox()
        self.sleep_control = SleepControl(engine, self.mailbox, idle)
        self.admission = Admission(engine, self.mailbox, self.sleep_control, idle)

    def start(self, on_turn: Callable[[bool], None] | None = None) -> EngineThread:
        """Start the thread. `on_turn`: see `EngineThread`."""
        return EngineThread(self.engine, self.mailbox, self.sleep_control, self.admission, on_turn)

    def call(self, verb: str, arguments: Mapping[str, Any]) -> tuple[EngineCall[Any], Command]:
        """A call of an `EngineClient`, and the command that runs it once it is sent."""
        if verb == "sleep":
            options = SleepOptions(**arguments)
            sleep = EngineCall(lambda: self.sleep_control.sleep(options))
            return sleep, lambda: self.sleep_control.begin_sleep(sleep, options)
        is_foreign = verb in _FOREIGN

        def run() -> Any:
            if is_foreign:
                self.sleep_control.restart_clock()
            return self.function(verb)(**arguments)

        call: EngineCall[Any] = EngineCall(run, is_foreign)
        return call, call.run

    def function(self, verb: str) -> Callable[..., Any]:
        """The function of a verb, which runs on the thread."""
        function: Callable[..., Any] = getattr(self.sleep_control if verb in _OF_SLEEP_CONTROL else self.engine, verb)
        return function
