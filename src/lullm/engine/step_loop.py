"""StepLoop: plans steps, launches them, and applies their results, until every request has had its last output.

It is the only caller of `Scheduler.plan` and `apply`. On a device a second step is planned and launched while the first
runs (`lullm.sched.lookahead`). A step that fails ends the loop and the engine.
"""

import threading
from collections import deque
from collections.abc import Callable

from lullm.engine.lora.adapters import Adapters
from lullm.engine.output import OutputProcessor
from lullm.engine.stream_pace import StreamPace
from lullm.errors import EngineDeadError, HibernatedError, UnsupportedError, WorkerLostError
from lullm.executor.executor import Executor
from lullm.log import get_logger
from lullm.sched.scheduler import Scheduler
from lullm.text.tokenizer import Tokenizer
from lullm.types.pooling.outputs import EngineOutput, PoolingRequestOutput
from lullm.types.request import GenerateRequest
from lullm.types.step import Running, StepPlan, StepResult

logger = get_logger(__name__)

_EXPERTS_EVERY = 256
"""Steps between two readings of the experts' load. Not seconds: all processes of a launcher must read at the same step.
A reading takes some milliseconds with 48 layers of 128 experts, so 0.2 % of steps of 5 ms.
"""


def _give_up(loss: WorkerLostError) -> None:
    raise loss


class StepLoop:
    """The steps of one engine. The caller of `step` makes sure that the engine is awake.

    Attributes:
        pending: outputs that the next `step` returns with its own.
        output_processor: makes the outputs.
        expert_balance: of the experts' load, at the last reading; None: no experts, or no reading yet.
        num_steps: applied since the start.
        finished: requests since the start, by the finish reason of their first output.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        tokenizer: Tokenizer,
        pace: StreamPace | None = None,
        restart: Callable[[WorkerLostError], None] = _give_up,
        adapters: Adapters | None = None,
    ):
        self._restart = restart
        self._adapters = adapters
        self.pending: list[EngineOutput] = []
        self.num_steps = 0
        self.finished: dict[str, int] = {"stop": 0, "length": 0, "abort": 0}
        self._scheduler = scheduler
        self._executor = executor
        self.expert_balance: float | None = None
        self._has_experts = True  # until a reading shows that there are none
        self.output_processor = OutputProcessor(tokenizer, pace)
        self._in_flight: deque[tuple[StepPlan, Running[StepResult]]] = deque()  # steps that were launched
        self._failure: BaseException | None = None
        self._thread: int | None = None  # that is within a step

    def add(self, request: GenerateRequest) -> None:
        """Queue a request. Raises InvalidRequestError: it can never run, or its id is taken."""
        self.output_processor.add(self._scheduler.add(request))

    def step(self) -> list[EngineOutput]:
        """Launch as many steps as allowed, and apply the result of the oldest. Blocks until that has run.

        Raises:
            EngineDeadError: the step failed; all requests are lost.
        """
        return self._guarded(self._step)

    def drain(self) -> None:
        """Apply the results of all steps in flight; the outputs come with the next `step`. Raises as `step` does."""
        while self._in_flight:
            self.pending += self._guarded(self._take_in)

    def abort(self, request_id: str, wants_output: bool, reason: str | None = None) -> None:
        """End a request and free its blocks now. Idempotent. `wants_output`: its last output becomes `pending`."""
        group = self._scheduler.abort(request_id, reason)
        if group is None:
            return
        output = self.output_processor.abort(group)
        self._count_finished(output)
        if wants_output:
            self.pending.append(output)

    def keep(self, outputs: list[EngineOutput]) -> None:
        """Keep outputs of a step that its caller could not return; the next step returns them first."""
        self.pending = outputs + self.pending

    def take_pending(self) -> list[EngineOutput]:
        """The pending outputs, without a step."""
        outputs, self.pending = self.pending, []
        return outputs

    def check_alive(self) -> None:
        """Check that no step has failed.

        Raises:
            EngineDeadError: one has.
            UnsupportedError: the caller is within a step, such as a handler of signals; it would wait for itself.
        """
        if self._thread == threading.get_ident():
            raise UnsupportedError(
                "a call of the engine within one of its steps, perhaps from a handler of signals: let the handler set "
                "a flag or put the work into a queue, and call the engine when its own call has returned"
            )
        if self._failure is not None:
            if isinstance(self._failure, WorkerLostError | HibernatedError):
                raise type(self._failure)(str(self._failure)) from self._failure
            cause = str(self._failure) or type(self._failure).__name__
            raise EngineDeadError(f"the engine died earlier: {cause}; build a new one") from self._failure

    def end(self, reason: HibernatedError) -> None:
        """Every further call raises this error."""
        self._failure = reason

    def fail(self, error: Exception, doing: str) -> None:
        """End the loop: the workers are in an unknown state. Raises EngineDeadError."""
        self._failure = error
        self._in_flight.clear()
        logger.exception("%s failed; the engine is dead", doing)
        raise EngineDeadError(f"the engine died in {doing}: {type(error).__name__}: {error}") from error

    def recover(self, loss: WorkerLostError) -> None:
        """Go on with new workers. Raises WorkerLostError: there are none, and the loop ends."""
        self._in_flight.clear()
        try:
            self._restart(loss)
        except BaseException as error:
            self._failure = error
            raise

    def _guarded(self, call: Callable[[], list[EngineOutput]]) -> list[EngineOutput]:
        before, self._thread = self._thread, threading.get_ident()
        try:
            return call()
        except BaseException as error:
            if self._failure is not None:  # it was logged already
                raise
            if isinstance(error, WorkerLostError):
                self.recover(error)
                return []
            if isinstance(error, Exception):
                self.fail(error, "a step")
            self._failure = error  # a second Ctrl-C does not wait for the end of the step
            self._in_flight.clear()
            raise
        finally:
            self._thread = before

    def _step(self) -> list[EngineOutput]:
        while self._scheduler.can_plan:
            self._read_adapters()
            plan = self._scheduler.plan()
            if plan.is_empty:
                break
            self._in_flight.append((plan, self._executor.launch_model(plan)))
        found = self._take_in()
        outputs = self.take_pending() + found
        if not self._scheduler.has_unfinished:
            self.drain()  # steps planned too far ahead: an idle engine has none in flight
        return outputs

    def _read_adapters(self) -> None:
        """Have workers read the adapters that the next plan needs. Requests end whose adapter cannot be read."""
        while self._adapters is not None and self._adapters.has_unread:
            while self._in_flight:
                self.pending += self._take_in()
            for adapter, reason in self._adapters.read_wanted().items():
                for request_id in self._scheduler.waiting.ids_of(adapter):
                    self.abort(request_id, True, reason)

    def _take_in(self) -> list[EngineOutput]:
        """Wait for the oldest step in flight, if any, and apply its result."""
        if self._in_flight:
            plan, running = self._in_flight.popleft()
            result = running.result()
            self.num_steps += 1
            if self.num_steps % _EXPERTS_EVERY == 0 and self._has_experts:
                self._look_at_experts()
            updates = self._scheduler.apply(plan, result)
        else:
            updates = self._scheduler.take_outgrown()
        for update in updates:
            stop = self.output_processor.take(update)
            if stop is not None and not update.seq.is_finished:
                self._scheduler.finish(update.seq, stop)
        outputs = self.output_processor.outputs({id(u.group): u.group for u in updates}.values())
        for output in outputs:
            self._count_finished(output)
        return outputs

    def _look_at_experts(self) -> None:
        load = self._executor.expert_load()
        self._has_experts = bool(load.tokens)
        self.expert_balance = load.balance if self._has_experts else None

    def _count_finished(self, output: EngineOutput) -> None:
        if output.finished:
            first = output if isinstance(output, PoolingRequestOutput) else next(iter(output.outputs), None)
            reason = None if first is None else first.finish_reason
            self.finished[reason or "abort"] += 1
