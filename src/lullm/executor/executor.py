"""Executor: sends an engine's verbs to all of its workers, wherever they are, and merges the results.

Loads no torch.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lullm.errors import ModelLoadError, UnsupportedError
from lullm.executor.expert_balance import after_swaps, check_movable, even_swaps, load_of, merged_experts, num_moved
from lullm.executor.feeding import Feeding
from lullm.executor.merge import agreed, merged_reports, minimum, values
from lullm.executor.workers import Answer, Workers, WorkerVerb
from lullm.types.hibernation.report import BlockFile
from lullm.types.parallel.experts import ExpertLoad, ExpertMove, LayerExperts
from lullm.types.sleep import Action, Released, SleepCommand, SleepForecast, UsedBlocks
from lullm.types.step import Running, StepPlan, StepResult
from lullm.types.wire.remote_call import RemoteCall

if TYPE_CHECKING:
    from torch import Tensor


class Executor:
    """Acts on all workers of an engine, which have loaded their model. All verbs except `launch_model` block until
    every worker is done.

    If workers fail, the error of the first one by rank is raised; the other errors are notes on it.
    """

    def __init__(self, workers: Workers):
        self._workers = workers
        self._feeding = Feeding()

    @property
    def num_workers(self) -> int:
        """The number of workers: of results of `collective_rpc`."""
        return self._workers.num_workers

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit on every worker: the minimum over them. Raises CacheSizeError."""
        return minimum(self._call("num_available_blocks"))

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Set up both pools of the KV cache, and steps for sequences of up to `max_model_len` tokens, on every worker.

        Raises CacheSizeError.
        """
        self._call("initialize_cache", num_blocks, num_host_blocks, max_model_len)

    def measure_copy_speed(self) -> float:
        """Bytes per second between the pools, of the slowest worker. Before the first plan: it writes into blocks."""
        slowest: float = min(self._call("measure_copy_speed"))
        return slowest

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        """Touch some of these blocks' memory on every worker; returns whether more is left. Some milliseconds."""
        return any(self._call("touch_blocks", block_ids))

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step, after the steps that were started before. `result()` blocks; call it in the same order."""
        self._workers.check_health()
        steps = self._workers.launch(plan)
        return steps[0] if len(steps) == 1 else _MergedStep(steps)

    def prepare_sleep(self, command: SleepCommand) -> None:
        """Every worker saves its part of the sleep; nothing is released. `commit_sleep` or `cancel_sleep` comes next.

        Raises:
            SleepError: a worker could not save, or a backup that was to move is damaged. All workers are as before.
        """
        try:
            self._call("prepare_sleep", command)
        except BaseException:
            self.cancel_sleep()
            raise

    def commit_sleep(self) -> Released:
        """Every worker releases what it has saved. Bytes are sums; seconds are the slowest worker's."""
        released: Released = merged_reports(self._call("commit_sleep"))
        return released

    def cancel_sleep(self) -> None:
        """Return every worker to its state before `prepare_sleep`. Idempotent."""
        self._call("cancel_sleep")

    def forecast_sleep(self, command: SleepCommand) -> SleepForecast:
        """Predict a sleep. Bytes are sums; seconds are the slowest worker's. Raises SleepError."""
        forecast: SleepForecast = merged_reports(self._call("forecast_sleep", command))
        return forecast

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        """Restore one tag on all workers or on none; returns the sum of bytes. `ahead`: tags that are woken next.

        Its backups still exist: `commit_wake_up` or `cancel_wake_up` comes next, once all tags are there or one failed.

        Raises:
            WakeUpError: a worker failed; the tag is asleep on all of them.
        """
        try:
            num_bytes: int = sum(self._call("wake_up", tag, action, ahead))
        except BaseException:
            self.cancel_wake_up(tag)
            raise
        return num_bytes

    def commit_wake_up(self, tag: str) -> None:
        """Every worker drops its backup of the tag, or keeps its memory for the next sleep. Idempotent."""
        self._call("commit_wake_up", tag)

    def cancel_wake_up(self, tag: str) -> None:
        """Every worker releases the tag again. Idempotent."""
        self._call("cancel_wake_up", tag)

    def weight_checksums(self) -> list[dict[str, int]]:
        """By worker, the checksums of its parameters, which other processes can compare. Raises EngineAsleepError."""
        return self._call("weight_checksums")

    def write_blocks(self, folder: Path, used: UsedBlocks) -> list[BlockFile]:
        """Every worker writes its share of these blocks to a new file, `block_file_name(rank)`. Raises OSError."""
        return self._call("write_blocks", folder, used)

    def read_blocks(self, folder: Path, used: UsedBlocks, files: Sequence[BlockFile]) -> int:
        """Every worker reads back its share into `used`; negative: left out. Returns the sum of bytes.

        Raises HibernationError: a file is damaged; some of the blocks are overwritten.
        """
        num_bytes: int = sum(self._call("read_blocks", folder, used, list(files)))
        return num_bytes

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        """Give every worker these tensors, under the checkpoint's names, one by one; returns how many were used.

        The iterable is consumed here, in the engine's process. A worker takes its share of each tensor.

        Raises:
            EngineAsleepError: the weights are asleep.
            ModelLoadError: an unexpected tensor, or one of another shape or type; the tensors before it stay replaced,
                and the message names them.
        """
        self._call("begin_update")
        try:
            for name, tensor in self._feeding.items(weights):
                self._call("write_weight", name, tensor)
        except BaseException as error:
            [applied, *_] = self._call("end_update")
            if not isinstance(error, ModelLoadError):  # ModelLoadError names them already
                from lullm.weights.store import explain_applied  # loads torch, as the engine has by now

                error.add_note(explain_applied(applied))
            raise
        return len(agreed(self._call("end_update"), "the weights that were replaced"))

    def check_checkpoint(self, checkpoint: Path) -> None:
        """Every worker compares another checkpoint's headers with its model. Raises ModelLoadError."""
        self._call("check_checkpoint", checkpoint)

    def reload_weights(self, checkpoint: Path | None = None) -> None:
        """Every worker reads its checkpoint again, or another one, which is its own from then on.

        Raises EngineAsleepError, ModelLoadError, OSError: the workers keep the checkpoint that they had.
        """
        self._call("reload_weights", checkpoint)
        if checkpoint is not None:
            self._call("keep_checkpoint", checkpoint)

    def has_pushed_weights(self) -> bool:
        """Whether weights of any worker were changed since they were loaded or woke up."""
        return any(self._call("has_pushed_weights"))

    @property
    def weights_version(self) -> int:
        """Grows with every change of any worker's weights, by a verb or otherwise. Costs no call: see `Workers`."""
        return sum(self._workers.weights_versions())

    def read_adapter(self, number: int, path: str) -> int:
        """Every worker reads a LoRA adapter from PEFT's folder into host memory; returns the bytes of all.

        Raises ModelLoadError: it is no adapter for the model; no worker keeps it.
        """
        try:
            return sum(self._call("read_adapter", number, path))
        except ModelLoadError:
            self.drop_adapter(number)
            raise

    def drop_adapter(self, number: int) -> None:
        """Every worker forgets an adapter that it has read. Idempotent."""
        self._call("drop_adapter", number)

    def reset_kv_scales(self) -> None:
        """Forget the scales of an fp8 cache. No block may be in use."""
        self._call("reset_kv_scales")

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """The number of tokens that have used each expert. `clear`: start counting from 0 again."""
        load = load_of(self._experts())
        if clear:
            self._call("clear_expert_load")
        return load

    def rebalance_experts(self) -> ExpertMove:
        """Move experts so that the workers of each stage have equal load, by the counts so far.

        Raises:
            ConfigError, UnsupportedError: experts cannot move.
            EngineAsleepError: the weights are asleep. After any other error the weights are mixed.
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
        """Call `method(worker, *args, **kwargs)`, or a method by name, on every worker; results by rank.

        Args:
            timeout: seconds to wait for all of them; None: no limit.

        Raises:
            InvalidRequestError: workers have no such method.
            UnsupportedError: a timeout, with workers whose calls cannot be cut off.
        """
        return values(self._workers.run(RemoteCall(method, timeout, args, kwargs)))

    def check_health(self) -> None:
        """Check that all workers live. Raises EngineDeadError; InvalidRequestError: they wait for a weight."""
        self._feeding.check()
        self._workers.check_health()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """Call `observer` once, from any thread, when a worker is lost, so that `check_health` begins to fail.

        Workers in the engine's process are lost only with it.
        """
        self._workers.observe_loss(observer)

    def restart(self) -> None:
        """Replace all workers by new ones in their state after `initialize_cache`, with empty blocks.

        Blocks until they have loaded their model. Raises UnsupportedError: workers of this kind cannot be started
        again; errors of loading.
        """
        raise UnsupportedError(
            "workers of this executor cannot be started again; use distributed_executor_backend='mp'"
        )

    def shutdown(self) -> None:
        """Stop the workers and release their memory. Idempotent."""
        self._workers.close()

    def _experts(self) -> list[LayerExperts]:
        return merged_experts(self._call("layer_experts"))

    def _call(self, verb: WorkerVerb, *args: Any) -> list[Any]:
        """The values of all workers, by rank. Raises as `values` does."""
        return values(self._workers.call(verb, *args))


@dataclass(frozen=True, slots=True)
class _MergedStep:
    """A step on every worker. Workers of the last stage all draw the same tokens, and the last one has the result."""

    steps: list[Running[StepResult]]

    def result(self) -> StepResult:
        answers = []
        for step in self.steps:  # wait for all, so that no worker falls behind when another fails
            try:
                answers.append(Answer(step.result()))
            except Exception as error:
                answers.append(Answer(error=error))
        results: list[StepResult] = values(answers)
        return results[-1]
