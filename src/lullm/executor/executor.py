"""Executor: the verbs of an engine on its workers, wherever they are: one verb to all of them, one merged result.

Loads no torch.
"""

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
from lullm.executor.merge import agreed, merged_reports, minimum, values
from lullm.executor.workers import Answer, Workers, WorkerVerb
from lullm.types.parallel.experts import ExpertLoad, ExpertMove, LayerExperts
from lullm.types.sleep import Action, Released, SleepForecast, SleepOrder
from lullm.types.step import Running, StepPlan, StepResult

if TYPE_CHECKING:
    from torch import Tensor


class Executor:
    """Acts on all workers of an engine, which have loaded their model. All verbs but `launch_model` block until every
    worker is done.

    If workers fail, the error of the first of them by rank is raised; the others' are notes on it.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._feeding = Feeding()

    @property
    def num_workers(self) -> int:
        """How many there are: results of `collective_rpc`."""
        return self._workers.num_workers

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit on every worker: the minimum over them. Raises CacheSizeError."""
        return minimum(self._call("num_available_blocks"))

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Every worker sets up both pools of the KV cache, and steps for sequences of at most so many tokens.

        Raises CacheSizeError.
        """
        self._call("initialize_cache", num_blocks, num_host_blocks, max_model_len)

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill) of the slowest worker.

        Before the first plan: it writes into blocks.
        """
        return minimum(self._call("measure_speeds"))

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        """Every worker takes some of the memory that these blocks lack; whether any lacks more. Some milliseconds."""
        return any(self._call("touch_blocks", block_ids))

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step after those that were started before. `result()` blocks for it; to be called in that order."""
        self._workers.check_health()
        steps = self._workers.launch(plan)
        return steps[0] if len(steps) == 1 else _MergedStep(steps)

    def prepare_sleep(self, order: SleepOrder) -> None:
        """Every worker saves what the order says; nothing is released. `commit_sleep` or `cancel_sleep` comes next.

        Raises:
            OSError: a worker could not save. WakeUpError: a backup that was to move is damaged. In both cases all
                workers are as they were.
        """
        try:
            self._call("prepare_sleep", order)
        except BaseException:
            self.cancel_sleep()
            raise

    def commit_sleep(self) -> Released:
        """Every worker releases what it has prepared. Bytes are sums; seconds are the slowest worker's."""
        released: Released = merged_reports(self._call("commit_sleep"))
        return released

    def cancel_sleep(self) -> None:
        """Every worker is as it was before `prepare_sleep`. Idempotent."""
        self._call("cancel_sleep")

    def forecast_sleep(self, order: SleepOrder) -> SleepForecast:
        """What a sleep with this order would do. Bytes are sums; seconds are the slowest worker's. Raises OSError."""
        forecast: SleepForecast = merged_reports(self._call("forecast_sleep", order))
        return forecast

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        """Bring one tag back on all workers or on none; how many bytes in all. `ahead`: tags that are woken next.

        Raises:
            WakeUpError: a worker could not; the tag is asleep on every one, and its backups are still there.
        """
        try:
            num_bytes: int = sum(self._call("wake_up", tag, action, ahead))
        except BaseException:
            self._call("cancel_wake_up", tag)
            raise
        self._call("commit_wake_up", tag)
        return num_bytes

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        """Give every worker these tensors, under the checkpoint's names, one by one; how many were of use.

        The iterable is consumed here, in the engine's process. A worker takes its share of each tensor.

        Raises:
            EngineAsleepError: the weights are asleep. ModelLoadError: an unexpected tensor, or one of another shape or
                type; the tensors before it stay replaced, and the message names them.
        """
        self._call("begin_update")
        try:
            for name, tensor in self._feeding.items(weights):
                self._call("write_weight", name, tensor)
        except BaseException as error:
            [applied, *_] = self._call("end_update")
            if not isinstance(error, ModelLoadError):  # whose message has it
                from lullm.weights.store import explain_applied  # loads torch, as the engine has by now

                error.add_note(explain_applied(applied))
            raise
        return len(agreed(self._call("end_update"), "the weights that were replaced"))

    def reload_weights(self) -> None:
        """Every worker reads the checkpoint again. Raises EngineAsleepError, ModelLoadError, OSError."""
        self._call("reload_weights")

    def has_pushed_weights(self) -> bool:
        """Whether weights of any worker were changed since they were loaded or woke up."""
        return any(self._call("has_pushed_weights"))

    @property
    def weights_version(self) -> int:
        """Goes up with every change of any worker's weights, by a verb or otherwise. Costs no call: see `Workers`."""
        return sum(self._workers.weights_versions())

    def reset_kv_scales(self) -> None:
        """Start over with the scales of an fp8 cache. No block may hold anything."""
        self._call("reset_kv_scales")

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """What the experts have had to do. `clear`: it is counted anew from now on."""
        load = load_of(self._experts())
        if clear:
            self._call("clear_expert_load")
        return load

    def rebalance_experts(self) -> ExpertMove:
        """Have experts change places, so that the workers of each stage have as much to do, by the load so far.

        Raises:
            ConfigError, UnsupportedError: experts cannot move. EngineAsleepError: the weights are asleep. Then nothing
                has moved. After any other error the weights are mixed.
        """
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

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """A caller's own `method(worker, *args, **kwargs)` on every worker, or a method by name; results by rank.

        Args:
            timeout: seconds to wait for all of them; None: as long as it takes.

        Raises:
            InvalidRequestError: workers have no such method. UnsupportedError: a timeout where calls cannot be cut off.
        """
        return values(self._workers.run(method, timeout, args, kwargs or {}))

    def check_health(self) -> None:
        """Return if all workers live. Raises EngineDeadError otherwise; InvalidRequestError: they wait for a weight."""
        self._feeding.check()
        self._workers.check_health()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """Have `observer` called once, from any thread, when `check_health` begins to fail because a worker is lost.

        Workers in the engine's process are lost with it only.
        """
        self._workers.observe_loss(observer)

    def restart(self) -> None:
        """New workers in place of all there were, as they were after `initialize_cache`: their blocks hold nothing.

        Blocks until they have loaded their model. Raises UnsupportedError: they are not of a kind that can be started
        again; what loading raises.
        """
        raise UnsupportedError(
            "workers of this executor cannot be started again; use distributed_executor_backend='mp'"
        )

    def shutdown(self) -> None:
        """Stop the workers and give their memory back. Idempotent."""
        self._workers.close()

    def _experts(self) -> list[LayerExperts]:
        return merged_experts(self._call("layer_experts"))

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
