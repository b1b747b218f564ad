"""Workers: carries an executor's verbs to the workers of an engine, in this process or in others.

Arguments and results of `Workers.call` are plain data and tensors, so that they can be sent to other processes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from lullm.errors import InvalidRequestError
from lullm.types.step import Running, StepPlan, StepResult
from lullm.types.wire.remote_call import RemoteCall
from lullm.worker.remote_methods import REMOTE_METHODS

if TYPE_CHECKING:
    from lullm.worker.worker import Worker

WorkerVerb = Literal[
    "num_available_blocks",
    "initialize_cache",
    "measure_copy_speed",
    "touch_blocks",
    "prepare_sleep",
    "commit_sleep",
    "cancel_sleep",
    "wake_up",
    "commit_wake_up",
    "cancel_wake_up",
    "forecast_sleep",
    "weight_checksums",
    "write_blocks",
    "read_blocks",
    "begin_update",
    "write_weight",
    "end_update",
    "check_checkpoint",
    "reload_weights",
    "keep_checkpoint",
    "has_pushed_weights",
    "reset_kv_scales",
    "layer_experts",
    "clear_expert_load",
    "swap_experts",
    "read_adapter",
    "drop_adapter",
]
"""The methods of `Worker` that an executor calls, beside steps."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One worker's answer to a verb: a value, or the error that it raised."""

    value: Any = None
    error: Exception | None = None


def run_on(worker: "Worker", call: RemoteCall) -> Any:
    """One worker's part of `Workers.run`. Raises InvalidRequestError: it has no such method; errors of the method."""
    method, args, kwargs = call.method, call.args, call.kwargs or {}
    if callable(method) or method not in REMOTE_METHODS:
        worker.settle()  # the caller's own code may read parameters
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
        """Call a verb on every worker; blocks until all have answered. A worker's failure does not stop the others."""
        ...

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        """Start a step on every worker, after those that were started before. Does not block for it."""
        ...

    def run(self, call: RemoteCall) -> list[Answer]:
        """Have every worker do a `collective_rpc`."""
        ...

    def weights_versions(self) -> list[int]:
        """The weights' version of each worker. Costs no message: it comes with every answer, or is read here."""
        ...

    def check_health(self) -> None:
        """Check that all workers live. Costs no message. Raises EngineDeadError otherwise."""
        ...

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """See `Executor.observe_loss`."""
        ...

    def close(self) -> None:
        """Stop the workers and release their memory. Idempotent."""
        ...
