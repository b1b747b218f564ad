"""EngineCalls: an engine's calls other than requests: sleep, new weights, workers. Loads no torch.

`LLM` has the same calls, with these docstrings (`lullm.llm.exclusive`).
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from lullm.config.resolved import ResolvedConfig
from lullm.engine.lifecycle import Lifecycle
from lullm.engine.lora.adapters import Adapters, as_lora
from lullm.engine.step_loop import StepLoop
from lullm.errors import (
    ConfigError,
    EngineAsleepError,
    InvalidRequestError,
    ModelLoadError,
    UnsupportedError,
    WorkerLostError,
)
from lullm.executor.executor import Executor
from lullm.sched.scheduler import Scheduler
from lullm.types.lora.request import LoRARequest
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.sleep import (
    ForecastArguments,
    SleepArguments,
    SleepForecast,
    SleepOptions,
    SleepReport,
    SleepState,
    WakeReport,
)
from lullm.types.vllm_argument import VllmNames
from lullm.weights.folder import resolve_model
from lullm.worker.remote_methods import check_remote_call, remote_methods

if TYPE_CHECKING:
    from torch import Tensor


class EngineCalls(VllmNames, ABC):
    """Base of `LLMEngine`. A call that changes workers first drains steps in flight, so none sees half a change."""

    config: ResolvedConfig
    model_executor: Executor
    lifecycle: Lifecycle
    _adapters: Adapters
    _loop: StepLoop
    _scheduler: Scheduler

    @abstractmethod
    def check_health(self) -> None:
        """Check that the engine serves. Raises EngineDeadError."""

    @abstractmethod
    def step(self) -> list[EngineOutput]:
        """Run one step."""

    def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        """Release memory until `wake_up`; needs `enable_sleep_mode=True`. Returns once it is released. Idempotent.

        Args:
            level: 0 pauses, 1 keeps the contents that are needed to go on, 2 keeps nothing.
            arguments: mode ('keep', 'wait', 'abort'), tags ('weights', 'kv_cache'), backup ('auto', 'ram', 'disk'),
                keep_prefix_cache; see `SleepOptions`. With mode 'wait' requests end first; their outputs come with the
                engine's next `step`.

        Raises:
            ConfigError: sleep mode is off.
            InvalidRequestError: unknown level, mode, tag or target.
            SleepError: a backup failed, such as at a full disk; the engine is awake.
            EngineAsleepError: mode 'wait', but the engine sleeps already, and the requests that it keeps cannot end.
        """
        options = SleepOptions(level, **arguments)
        self.check_health()
        self.lifecycle.check(options)
        while options.mode == "wait" and self._scheduler.has_unfinished:
            self._loop.keep(self.step())
        self._loop.drain()
        if options.mode == "abort":
            for request_id in self._scheduler.unfinished_ids:
                self._loop.abort(request_id, wants_output=True)
        return self.lifecycle.sleep(options)

    def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        """Predict memory and time of a `sleep` with these arguments. Changes nothing; raises as `sleep` does."""
        options = SleepOptions(level, mode="keep", **arguments)
        self.check_health()
        self.lifecycle.check(options)
        return self.lifecycle.forecast(options)

    def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Restore the memory that `sleep` released (`tags` None: all), at the same addresses. Idempotent.

        Raises:
            WakeUpError: there is no memory, or contents differ from those before the sleep. All that slept is asleep
                again.
        """
        self.check_health()
        return self.lifecycle.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether memory is released, or the engine is paused (level 0)."""
        return self.lifecycle.is_sleeping

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Tags of the memory that is released now: 'weights', 'kv_cache', both or none."""
        return self.lifecycle.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """Whether the engine is awake and, if not, how deep it sleeps."""
        return self.lifecycle.state

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Always True: running requests do not prevent it.

        Running requests keep their KV. With `reset_running_requests` they lose it, and their tokens are computed again.
        """
        if reset_running_requests:
            self.check_health()
            self._loop.drain()
            self._scheduler.evict_all()
        self._scheduler.block_space.reset_prefix_cache()
        return True

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
        """Call a function on every worker; returns one answer per worker.

        Args:
            method: the name of one of `REMOTE_METHODS` or of a method of `worker_extension_cls`, or a function that
                takes the worker first.

        Raises:
            InvalidRequestError: an unknown name, or arguments that one of `REMOTE_METHODS` does not take.
            UnsupportedError: a timeout, with workers whose calls cannot be cut off. Any error of the method.
        """
        self.check_health()
        if not callable(method):
            check_remote_call(self.remote_methods, method, args, kwargs)
        self._loop.drain()
        if method == "reload_weights" and timeout is None:
            self.reload_weights(**(kwargs or {}))
            return [None] * self.model_executor.num_workers
        try:
            return self.model_executor.collective_rpc(method, timeout, args, kwargs)
        finally:
            self.lifecycle.drop_stale_kv()

    def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
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

    def reload_weights(self, weights_path: str | Path | None = None) -> None:
        """Read the weights from the checkpoint again, or from another one. Blocking.

        Unfinished requests keep their tokens, and cached prefixes are forgotten, as after `update_weights`.

        Args:
            weights_path: named as `model` is: a folder, a GGUF file, a hub id. It takes the checkpoint's place: later
                reloads and wake-ups read it. Its config is not read; its tensors must fit the model.

        Raises:
            EngineAsleepError: the weights are asleep.
            InvalidRequestError: there is no such checkpoint, or by its headers it is another model's. Nothing has
                changed.
            ModelLoadError, OSError: it cannot be read. The weights are asleep (level 2); `wake_up` reads the
                checkpoint that they had.
        """
        self.check_health()
        self._loop.drain()
        self.lifecycle.reload_weights(None if weights_path is None else self._checkpoint(weights_path))

    def _checkpoint(self, weights_path: str | Path) -> Path:
        """The folder of a checkpoint. Raises InvalidRequestError: there is none, or it is of another model."""
        try:
            checkpoint = resolve_model(os.fspath(weights_path))
            self.model_executor.check_checkpoint(checkpoint)
        except TypeError:
            raise InvalidRequestError(f"weights_path must be a path, not {weights_path!r}", "weights_path") from None
        except ModelLoadError as error:
            raise InvalidRequestError(f"weights_path: {error}", "weights_path") from None
        return checkpoint

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

    def add_lora(self, lora_request: LoRARequest | Mapping[str, Any]) -> bool:
        """Read a LoRA adapter now, not at its first request. Blocking. False: it was there already.

        Raises:
            InvalidRequestError: the engine has no `enable_lora`, or the id is another adapter's.
            ModelLoadError: the folder is no adapter for the model; the message says what does not fit.
        """
        self.check_health()
        self._loop.drain()
        return self._adapters.add(as_lora(lora_request))

    def remove_lora(self, lora_id: int) -> bool:
        """Forget an adapter; requests that have it go on. False: there is none of this id."""
        self.check_health()
        self._loop.drain()
        return self._adapters.remove(lora_id)

    def pin_lora(self, lora_id: int) -> bool:
        """Keep an adapter in host memory until it is removed. False: there is none of this id.

        Raises InvalidRequestError: `max_cpu_loras` has no room for it beside `max_loras`.
        """
        self.check_health()
        self._loop.drain()
        return self._adapters.pin(lora_id)

    def list_loras(self) -> set[int]:
        """The ids of all adapters."""
        return self._adapters.ids

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
