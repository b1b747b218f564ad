"""MergedExecutor: the verbs of an executor over any workers, wherever they are. Implements `Executor`."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lullm.errors import ModelLoadError, UnsupportedError
from lullm.executor.expert_balance import (
    after_swaps,
    check_movable,
    even_swaps,
    load_of,
    merged_experts,
    num_moved,
)
from lullm.executor.feeding import Feeding
from lullm.executor.merge import agreed, merged_forecast, merged_release, minimum, values
from lullm.executor.protocol import Answer, Workers, WorkerVerb
from lullm.types.parallel.experts import ExpertLoad, ExpertMove, LayerExperts
from lullm.types.sleep import Action, Released, SleepForecast, SleepOrder
from lullm.types.step import Running, StepPlan, StepResult
from lullm.weights.store import explain_applied

if TYPE_CHECKING:
    from torch import Tensor


class MergedExecutor:
    """One verb to all workers, one result of all answers. The workers have loaded their model."""

    def __init__(self, workers: Workers):
        self._workers = workers
        self._feeding = Feeding()

    @property
    def num_workers(self) -> int:
        return self._workers.num_workers

    def determine_num_available_blocks(self) -> tuple[int, int]:
        return minimum(self._call("num_available_blocks"))

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        self._call("initialize_cache", num_blocks, num_host_blocks, max_model_len)

    def measure_speeds(self) -> tuple[float, float]:
        return minimum(self._call("measure_speeds"))

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        return any(self._call("touch_blocks", block_ids))

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        self._workers.check_health()
        steps = self._workers.launch(plan)
        return steps[0] if len(steps) == 1 else _MergedStep(steps)

    def prepare_sleep(self, order: SleepOrder) -> None:
        try:
            self._call("prepare_sleep", order)
        except BaseException:
            self.cancel_sleep()
            raise

    def commit_sleep(self) -> Released:
        return merged_release(self._call("commit_sleep"))

    def cancel_sleep(self) -> None:
        self._call("cancel_sleep")

    def forecast_sleep(self, order: SleepOrder) -> SleepForecast:
        return merged_forecast(self._call("forecast_sleep", order))

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        try:
            num_bytes: int = sum(self._call("wake_up", tag, action, ahead))
        except BaseException:
            self._call("cancel_wake_up", tag)
            raise
        self._call("commit_wake_up", tag)
        return num_bytes

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        self._call("begin_update")
        try:
            for name, tensor in self._feeding.items(weights):
                self._call("write_weight", name, tensor)
        except BaseException as error:
            [applied, *_] = self._call("end_update")
            if not isinstance(error, ModelLoadError):  # whose message has it
                error.add_note(explain_applied(applied))
            raise
        return len(agreed(self._call("end_update"), "the weights that were replaced"))

    def reload_weights(self) -> None:
        self._call("reload_weights")

    def has_pushed_weights(self) -> bool:
        return any(self._call("has_pushed_weights"))

    @property
    def weights_version(self) -> int:
        return sum(self._workers.weights_versions())

    def reset_kv_scales(self) -> None:
        self._call("reset_kv_scales")

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        load = load_of(self._experts())
        if clear:
            self._call("clear_expert_load")
        return load

    def rebalance_experts(self) -> ExpertMove:
        started = time.perf_counter()
        layers = self._experts()
        check_movable(layers)
        swaps = {each.layer: found for each in layers if (found := even_swaps(each))}
        if swaps:
            self._call("swap_experts", swaps)
        after = [after_swaps(each, swaps.get(each.layer, ())) for each in layers]
        return ExpertMove(
            num_moved(layers, after), load_of(layers).balance, load_of(after).balance, time.perf_counter() - started
        )

    def _experts(self) -> list[LayerExperts]:
        return merged_experts(self._call("layer_experts"))

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        return values(self._workers.run(method, timeout, args, kwargs or {}))

    def check_health(self) -> None:
        self._feeding.check()
        self._workers.check_health()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        self._workers.observe_loss(observer)

    def restart(self) -> None:
        raise UnsupportedError(
            "workers of this executor cannot be started again; use distributed_executor_backend='mp'"
        )

    def shutdown(self) -> None:
        self._workers.close()

    def _call(self, verb: WorkerVerb, *args: Any) -> list[Any]:
        """The values of all workers, by rank. Raises as `values` does."""
        return values(self._workers.call(verb, *args))


@dataclass(frozen=True, slots=True)
class _MergedStep:
    """A step that every worker runs. Those of the last stage draw, all of them alike: the last one has the result."""

    steps: list[Running[StepResult]]

    def result(self) -> StepResult:
        answers = []
        for step in self.steps:  # all are waited for, so that no worker falls behind when another fails
            try:
                answers.append(Answer(step.result()))
            except Exception as error:
                answers.append(Answer(error=error))
        results: list[StepResult] = values(answers)
        return results[-1]
