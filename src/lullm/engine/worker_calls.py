"""WorkerCalls: calls to an engine's workers between steps: new weights, moves of experts, their own methods."""

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
    """Base of `LLMEngine`. A call that changes workers first drains steps in flight, so none sees half a change."""

    config: ResolvedConfig
    model_executor: Executor
    lifecycle: Lifecycle
    _loop: StepLoop

    @abstractmethod
    def check_health(self) -> None:
        """Check that the engine serves. Raises EngineDeadError."""

    @property
    def remote_methods(self) -> frozenset[str]:
        """The names that `collective_rpc` takes. From any thread."""
        return remote_methods(self.config.worker_extension_cls)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call a function on every worker: one of `remote_methods` by name, or `method(worker, *args, **kwargs)`.

        Returns:
            One answer per worker.

        Raises:
            InvalidRequestError: an unknown name, or arguments for one of `REMOTE_METHODS`, which take none.
            UnsupportedError: a timeout, with workers whose calls cannot be cut off. Any error of the method.
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
        """Replace some or all weights by tensors under the checkpoint's own names; returns how many. Blocking.

        Unfinished requests keep their tokens; the new weights compute their KV again, so that no sequence mixes the KV
        of two versions. Clears the prefix cache. Works while the KV cache sleeps.

        Raises:
            EngineAsleepError: the weights are asleep.
            InvalidRequestError: no weight, or the iterable calls the engine.
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
        """The tokens that have used each expert, and each expert's worker. `clear`: start counting from 0 again."""
        self.check_health()
        return self.model_executor.expert_load(clear)

    def rebalance_experts(self) -> ExpertMove:
        """Move experts between workers so that all have equal load, by the counts so far. Blocking.

        Running requests go on. Level 2 sleep, updates and reloading keep the new places; new workers
        (`restart_workers`) begin with the old ones.

        Raises:
            ConfigError, UnsupportedError: experts cannot move.
            EngineAsleepError: the weights are asleep.
            EngineDeadError: the move failed half-way.
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
        """Profile all workers with torch until `stop_profile`.

        Raises:
            InvalidRequestError: a profile runs already.
            LullmError: the folder cannot be made.
        """
        self.model_executor.collective_rpc("start_profile", args=(Path(folder).absolute(),))

    def stop_profile(self) -> Path:
        """End the profile. Returns the path of the first worker's trace, for chrome://tracing; the others lie beside
        it.

        Raises:
            InvalidRequestError: no profile runs.
            LullmError: the trace cannot be written.
        """
        path: Path = self.model_executor.collective_rpc("stop_profile")[0]
        return path
