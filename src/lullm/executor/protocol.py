"""The seam between an engine and its workers: the verbs of an executor, and what carries them to the workers.

The engine calls an `Executor`: every verb acts on all workers and has one merged result. `MergedExecutor` implements
the verbs once, over `Workers`: in this process or, one day, elsewhere. What goes to `Workers.call` and comes back is
plain data and tensors, so that it can go over a wire.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sleep import Action, Released, SleepForecast, SleepOrder
from lullm.types.step import Running, StepPlan, StepResult

if TYPE_CHECKING:  # the seam itself loads no torch
    from torch import Tensor

WorkerVerb = Literal[
    "num_available_blocks",
    "initialize_cache",
    "measure_speeds",
    "touch_blocks",
    "prepare_sleep",
    "commit_sleep",
    "cancel_sleep",
    "wake_up",
    "commit_wake_up",
    "cancel_wake_up",
    "forecast_sleep",
    "begin_update",
    "write_weight",
    "end_update",
    "reload_weights",
    "has_pushed_weights",
    "reset_kv_scales",
    "layer_experts",
    "clear_expert_load",
    "swap_experts",
]
"""What a worker is asked to do, beside steps: the methods of `Worker` by these names."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one worker has made of a verb: a value, or the error that it raised."""

    value: Any = None
    error: Exception | None = None


class Workers(Protocol):
    """The workers of one engine, in rank order; each has loaded its model."""

    @property
    def num_workers(self) -> int: ...

    def call(self, verb: WorkerVerb, *args: Any) -> list[Answer]:
        """Every worker does this; blocks until all have answered. A worker that fails keeps no other from it."""
        ...

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        """Start a step on every worker, after those that were started before. Does not block for it."""
        ...

    def run(
        self, method: str | Callable[..., Any], timeout: float | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[Answer]:
        """A method of the workers by name, or `method(worker, *args, **kwargs)`. See `Executor.collective_rpc`."""
        ...

    def weights_versions(self) -> list[int]:
        """Of each worker's weights. Asks no process: as the last answers said, or as it is for workers in this one."""
        ...

    def check_health(self) -> None:
        """Return if all workers live. Asks no process. Raises EngineDeadError otherwise."""
        ...

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """See `Executor.observe_loss`."""
        ...

    def close(self) -> None:
        """Stop the workers and give their memory back. Idempotent."""
        ...


class Executor(Protocol):
    """Acts on all workers of an engine. All verbs but `launch_model` block until every worker is done.

    If workers fail, the error of the first of them by rank is raised; the others' are notes on it.
    """

    @property
    def num_workers(self) -> int:
        """How many there are: results of `collective_rpc`."""
        ...

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit on every worker: the minimum over them. Raises CacheSizeError."""
        ...

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Every worker sets up both pools of the KV cache, and steps for sequences of at most so many tokens.

        Raises CacheSizeError.
        """
        ...

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill) of the slowest worker.

        Before the first plan: it writes into blocks.
        """
        ...

    def touch_blocks(self, block_ids: Sequence[int]) -> bool:
        """Every worker takes some of the memory that these blocks lack; whether any lacks more. Some milliseconds."""
        ...

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step after those that were started before. `result()` blocks for it; to be called in that order."""
        ...

    def prepare_sleep(self, order: SleepOrder) -> None:
        """Every worker saves what the order says; nothing is released. `commit_sleep` or `cancel_sleep` comes next.

        Raises:
            OSError: a worker could not save. WakeUpError: a backup that was to move is damaged. In both cases all
                workers are as they were.
        """
        ...

    def commit_sleep(self) -> Released:
        """Every worker releases what it has prepared. Bytes are sums; seconds are the slowest worker's."""
        ...

    def cancel_sleep(self) -> None:
        """Every worker is as it was before `prepare_sleep`. Idempotent."""
        ...

    def forecast_sleep(self, order: SleepOrder) -> SleepForecast:
        """What a sleep with this order would do. Bytes are sums; seconds are the slowest worker's. Raises OSError."""
        ...

    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        """Bring one tag back on all workers or on none; how many bytes in all. `ahead`: tags that are woken next.

        Raises:
            WakeUpError: a worker could not; the tag is asleep on every one, and its backups are still there.
        """
        ...

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        """Give every worker these tensors, under the checkpoint's names, one by one; how many were of use.

        The iterable is consumed here, in the engine's process. A worker takes its share of each tensor.

        Raises:
            EngineAsleepError: the weights are asleep. ModelLoadError: an unexpected tensor, or one of another shape or
                type; the tensors before it stay replaced, and the message names them.
        """
        ...

    def reload_weights(self) -> None:
        """Every worker reads the checkpoint again. Raises EngineAsleepError, ModelLoadError, OSError."""
        ...

    def has_pushed_weights(self) -> bool:
        """Whether weights of any worker were changed since they were loaded or woke up."""
        ...

    @property
    def weights_version(self) -> int:
        """Goes up with every change of any worker's weights, by a verb or otherwise. Costs no call: see `Workers`."""
        ...

    def reset_kv_scales(self) -> None:
        """Start over with the scales of an fp8 cache. No block may hold anything."""
        ...

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """What the experts have had to do. `clear`: it is counted anew from now on."""
        ...

    def rebalance_experts(self) -> ExpertMove:
        """Have experts change places, so that the workers of each stage have as much to do, by the load so far.

        Raises:
            ConfigError, UnsupportedError: experts cannot move. EngineAsleepError: the weights are asleep. Then nothing
                has moved. After any other error the weights are mixed.
        """
        ...

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
        ...

    def check_health(self) -> None:
        """Return if all workers live. Raises EngineDeadError otherwise."""
        ...

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """Have `observer` called once, from any thread, when `check_health` begins to fail because a worker is lost.

        Workers in the engine's process are lost with it only.
        """
        ...

    def restart(self) -> None:
        """New workers in place of all there were, as they were after `initialize_cache`: their blocks hold nothing.

        Blocks until they have loaded their model. Raises UnsupportedError: they live in this process; what loading
        raises.
        """
        ...

    def shutdown(self) -> None:
        """Stop the workers and give their memory back. Idempotent."""
        ...
