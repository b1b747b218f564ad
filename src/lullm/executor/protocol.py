"""The interface of all executors."""

from typing import Any, Protocol

from lullm.types.step import StepPlan, StepResult


class Executor(Protocol):
    """Runs the same call on every worker. All calls block."""

    def collective_rpc(self, method: str, *args: Any) -> list[Any]:
        """Call a method of every worker by name; the results in rank order."""
        ...

    def determine_num_available_blocks(self) -> tuple[int, int]:
        """(device, host) KV blocks that fit on every worker (the minimum over them). Raises CacheSizeError."""
        ...

    def initialize_cache(self, num_blocks: int, num_host_blocks: int) -> None:
        """Set up both pools of the KV cache on every worker."""
        ...

    def measure_speeds(self) -> tuple[float, float]:
        """(bytes per second between the pools, tokens per second of prefill) of the slowest worker.

        Before the first plan: it writes into blocks.
        """
        ...

    def execute_model(self, plan: StepPlan) -> StepResult:
        """Run one plan on all workers; the result of the one that samples."""
        ...

    def check_health(self) -> None:
        """Return if all workers live. Raises EngineDeadError otherwise."""
        ...

    def shutdown(self) -> None:
        """Stop the workers and give their memory back. Idempotent."""
        ...
