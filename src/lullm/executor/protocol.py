"""The interface of all executors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from lullm.types.step import Running, StepPlan, StepResult


class Executor(Protocol):
    """Runs the same call on every worker. All calls but `launch_model` block."""

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a method of every worker by name, or `method(worker, *args, **kwargs)`; the results in rank order.

        Args:
            timeout: seconds to wait for all of them; None: as long as it takes.

        Raises:
            InvalidRequestError: workers have no such method. UnsupportedError: a timeout where calls cannot be cut off.
        """
        ...

    @property
    def weights_version(self) -> int:
        """Of the weights of all workers; cheap, to be asked before every step. See `WeightStore`."""
        ...

    @property
    def has_pushed_weights(self) -> bool:
        """Whether weights were changed since they were loaded or woke up."""
        ...

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit on every worker (the minimum over them). Raises CacheSizeError."""
        ...

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        """Set up both pools of the KV cache on every worker, and steps for sequences of at most so many tokens."""
        ...

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill) of the slowest worker.

        Before the first plan: it writes into blocks.
        """
        ...

    def launch_model(self, plan: StepPlan) -> Running[StepResult]:
        """Start a step after those that were started before; `result()` blocks for it. In the order of the starts."""
        ...

    def check_health(self) -> None:
        """Return if all workers live. Raises EngineDeadError otherwise."""
        ...

    def shutdown(self) -> None:
        """Stop the workers and give their memory back. Idempotent."""
        ...
