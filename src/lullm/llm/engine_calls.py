"""EngineCalls: the calls of `LLM` that concern the engine as a whole: sleep, weights, workers, shutdown."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from lullm.engine.interrupt import deferred_interrupt
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import ForecastArguments, SleepArguments, SleepForecast, SleepReport, SleepState, WakeReport
from lullm.types.vllm_argument import VLLM_CALLS, VLLM_PROFILE, VllmNames, takes_vllms

if TYPE_CHECKING:
    import torch

    from lullm.engine.llm_engine import LLMEngine  # loads torch
    from lullm.engine.replica.engine import ReplicaEngine
    from lullm.text.tokenizer import Tokenizer

T = TypeVar("T")


class EngineCalls(VllmNames):
    """Calls for an engine, or for several replicas, other than requests. Base of `LLM`. One call runs at a time."""

    def __init__(self, llm_engine: "LLMEngine | ReplicaEngine"):
        self.llm_engine = llm_engine
        self._turn = threading.RLock()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[threading.Event]:
        """Lock the engine for this thread. Ctrl-C within the block sets the event and interrupts nothing."""
        with self._turn, deferred_interrupt() as interrupt:
            yield interrupt

    def get_tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, with its chat template."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The defaults of a request: the model's generation_config.json. A copy; the caller may change it."""
        return self.llm_engine.default_params.clone()

    def sleep(self, level: int = 1, **options: Unpack[SleepArguments]) -> SleepReport:
        """Release memory until `wake_up`; needs `enable_sleep_mode=True`. Blocks until the memory is released.

        Args:
            level: 0 pauses, 1 keeps what is needed to go on, 2 keeps nothing.
            options: mode ('keep', 'wait', 'abort'), tags ('weights', 'kv_cache'), backup ('auto', 'ram', 'disk'),
                keep_prefix_cache; `SleepOptions` says what each means.

        Raises as `LLMEngine.sleep` does.
        """
        with self._exclusive():
            return self.llm_engine.sleep(level, **options)

    def explain_sleep(self, level: int = 1, **options: Unpack[ForecastArguments]) -> SleepForecast:
        """Predict memory and time of a `sleep` with these arguments. Changes nothing; raises as `sleep` does."""
        with self._exclusive():
            return self.llm_engine.explain_sleep(level, **options)

    def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Restore the memory that `sleep` released (`tags` None: all), at the same addresses. Idempotent.

        Raises:
            WakeUpError: the contents differ from those before the sleep; the engine is still asleep.
        """
        with self._exclusive():
            return self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether memory is released, or the engine is paused (level 0)."""
        return self.llm_engine.is_sleeping()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Tags of the memory that is released now: 'weights', 'kv_cache', both or none."""
        return self.llm_engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """Whether the engine is awake and, if not, how deep it sleeps."""
        return self.llm_engine.sleep_state

    @takes_vllms(VLLM_CALLS)
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Always True.

        `reset_running_requests`: requests of `llm_engine.add_request` lose their KV too, and are computed again.
        """
        with self._exclusive():
            return self.llm_engine.reset_prefix_cache(reset_running_requests)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        """Call `method` on every worker.

        `method`: 'reload_weights' or another of `REMOTE_METHODS`, a method of the `worker_extension_cls`, or a function
        that takes the worker.

        Returns one answer per worker. Raises as `LLMEngine.collective_rpc` does.
        """
        with self._exclusive():
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: "Callable[[torch.nn.Module], T]") -> list[T]:
        """Call `func` with the model on every worker, and return the results. Raises what `func` raises.

        Workers in other processes import `func` by its name. Raises UnsupportedError: it has no such name.
        """
        from lullm.worker.extension import call_with_model  # torch is loaded with the engine

        return self.collective_rpc(call_with_model, args=(func,))

    @takes_vllms(VLLM_PROFILE)
    def start_profile(self, folder: str | Path = "profile") -> None:
        """Profile the engine with torch until `stop_profile`. Raises as `Profiler.start` does."""
        with self._exclusive():
            self.llm_engine.start_profile(folder)

    def stop_profile(self) -> Path:
        """End the profile. Returns the path of its trace, for chrome://tracing. Raises as `Profiler.stop` does."""
        with self._exclusive():
            return self.llm_engine.stop_profile()

    def update_weights(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> int:
        """Replace weights by tensors under the checkpoint's names; returns how many. Raises as the engine's does."""
        with self._exclusive():
            return self.llm_engine.update_weights(weights)

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """The number of tokens that have used each expert. `clear`: start counting from 0 again."""
        with self._exclusive():
            return self.llm_engine.expert_load(clear)

    def rebalance_experts(self) -> ExpertMove:
        """Move experts so that all workers have equal load. Raises as `LLMEngine.rebalance_experts` does."""
        with self._exclusive():
            return self.llm_engine.rebalance_experts()

    def shutdown(self) -> None:
        """Release all memory; the object cannot be used afterwards. Idempotent."""
        with self._exclusive():
            self.llm_engine.shutdown()
