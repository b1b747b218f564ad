"""WorkerCalls: what an engine's workers can be told between steps: new weights, moves of experts, methods of theirs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lullm.config.resolved import ResolvedConfig
from lullm.engine.lifecycle import Lifecycle
from lullm.engine.step_loop import StepLoop
from lullm.errors import ConfigError, EngineAsleepError, UnsupportedError, WorkerLostError
from lullm.executor.executor import Executor
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.vllm_argument import VllmNames
from lullm.worker.extension import check_remote_call, remote_methods


class WorkerCalls(VllmNames, ABC):
    """`LLMEngine` is one. What changes something first takes in the steps in flight: none meets half of a change."""

    config: ResolvedConfig
    model_executor: Executor
    lifecycle: Lifecycle
    _loop: StepLoop

    @abstractmethod
    def check_health(self) -> None:
        """Return if the engine serves. Raises EngineDeadError."""

    @property
    def remote_methods(self) -> frozenset[str]:
        """What `collective_rpc` takes by name. From any thread."""
        return remote_methods(self.config.worker_extension_cls)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call something on every worker: one of `remote_methods` by name, or `method(worker, *args, **kwargs)`.

        Returns:
            One answer per worker.

        Raises:
            InvalidRequestError: an unknown name, or arguments for one of `REMOTE_METHODS`, which take none.
            UnsupportedError: a timeout, where calls cannot be cut off. What the method raises.
        """
        self.check_health()
        if not callable(method):
            check_remote_call(self.remote_methods, method, args, kwargs)
        self._loop.drain()
        if method == "reload_weights" and timeout is None:
            self.reload_weights()
            return [None] * self.model_executor.num_workers
        try:
            return self.model_executor.collective_rpc(method, timeout, args, kwargs)
        finally:
            self.lifecycle.drop_stale_kv()

    def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Replace some or all weights by tensors under the checkpoint's own names; how many. Blocking.

        Requests that are not finished keep their tokens; their KV is computed again, with the new weights, so that no
        sequence mixes the KV of two versions. The prefix cache is forgotten. Works while the KV cache sleeps.

        Raises:
            EngineAsleepError: the weights are asleep. InvalidRequestError: no weight, or iterating calls the engine.
            ModelLoadError: an unexpected tensor, or one of another shape or type; those before it stay replaced.
        """
        self.check_health()
        self._loop.drain()
        try:
            return self.model_executor.update_weights(weights)
        finally:
            self.lifecycle.drop_stale_kv()

    def reload_weights(self) -> None:
        """Read the weights from the checkpoint again. Raises EngineAsleepError, ModelLoadError, OSError."""
        self.check_health()
        self._loop.drain()
        self.lifecycle.reload_weights()

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """How many tokens have used each expert, and who has it. `clear`: it is counted anew from now on."""
        self.check_health()
        return self.model_executor.expert_load(clear)

    def rebalance_experts(self) -> ExpertMove:
        """Have experts change places between workers, so that all have as much to do, by the load so far. Blocking.

        Requests that run go on. Level 2 sleep, updates and reloading keep the new places; new workers
        (`restart_workers`) begin with the old ones.

        Raises:
            ConfigError, UnsupportedError: experts cannot move. EngineAsleepError: the weights are asleep.
            EngineDeadError: it failed half-way.
        """
        self.check_health()
        self._loop.drain()
        try:
            return self.model_executor.rebalance_experts()
        except (ConfigError, UnsupportedError, EngineAsleepError):
            raise
        except WorkerLostError as loss:
            self._loop.recover(loss)
            raise
        except Exception as error:
            self._loop.fail(error, "rebalance_experts")
            raise

    def start_profile(self, folder: str | Path = "profile") -> None:
        """Record where the time of all workers goes, until `stop_profile`, with torch.

        Raises:
            InvalidRequestError: a recording runs. LullmError: the folder cannot be made.
        """
        self.model_executor.collective_rpc("start_profile", args=(Path(folder).absolute(),))

    def stop_profile(self) -> Path:
        """End the recording; the trace of the first worker, beside those of the others, for chrome://tracing.

        Raises:
            InvalidRequestError: nothing is recorded. LullmError: it cannot be written.
        """
        path: Path = self.model_executor.collective_rpc("stop_profile")[0]
        return path
