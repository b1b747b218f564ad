"""Workers: what carries an executor's verbs to the workers of an engine, in this process or in others.

What goes to `Workers.call` and comes back is plain data and tensors, so that it can go over a wire.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from lullm.errors import InvalidRequestError
from lullm.types.step import Running, StepPlan, StepResult

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


def run_on(worker: object, method: str | Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """One worker's part of `Workers.run`. Raises InvalidRequestError: it has no such method; what the method raises."""
    if callable(method):
        return method(worker, *args, **kwargs)
    found = None if method.startswith("_") else getattr(worker, method, None)
    if not callable(found):
        raise InvalidRequestError(f"workers have no method {method!r}", "method")
    return found(*args, **kwargs)


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
