"""EngineCalls: the calls of `LLM` for its engine as a whole: sleep, weights, workers, the end. One thread at a time."""

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
    """What an engine, or several, can be told beside requests. `LLM` is one."""

    def __init__(self, llm_engine: "LLMEngine | ReplicaEngine"):
        self.llm_engine = llm_engine
        self._turn = threading.RLock()

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[threading.Event]:
        """The engine for this thread alone. Ctrl-C meanwhile sets the event and breaks nothing off."""
        with self._turn, deferred_interrupt() as interrupt:
            yield interrupt

    def get_tokenizer(self) -> "Tokenizer":
        """The model's tokenizer, with its chat template."""
        return self.llm_engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What a request without parameters uses: the model's generation_config.json. A copy, to be changed freely."""
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
        """What a `sleep` with these arguments would free, back up and take. Changes nothing; raises as `sleep` does."""
        with self._exclusive():
            return self.llm_engine.explain_sleep(level, **options)

    def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        """Bring back what `sleep` released (`tags` None: all), at the same addresses. Idempotent.

        Raises:
            WakeUpError: the contents did not come back as they were; the engine is still asleep.
        """
        with self._exclusive():
            return self.llm_engine.wake_up(tags)

    def is_sleeping(self) -> bool:
        """Whether something is released, or the engine paused (level 0)."""
        return self.llm_engine.is_sleeping()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now: 'weights', 'kv_cache', both or nothing."""
        return self.llm_engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        """Awake or how deep asleep, in one word."""
        return self.llm_engine.sleep_state

    @takes_vllms(VLLM_CALLS)
    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. Always True.

        `reset_running_requests`: those of `llm_engine.add_request` lose their KV, too, and are computed again.
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
        """Call `method` on every worker: 'reload_weights', another of `REMOTE_METHODS`, a method that
        `worker_extension_cls` brings along, or a function of the worker.

        Returns one answer per worker. Raises as `LLMEngine.collective_rpc` does.
        """
        with self._exclusive():
            return self.llm_engine.collective_rpc(method, timeout, args, kwargs)

    def apply_model(self, func: "Callable[[torch.nn.Module], T]") -> list[T]:
        """What `func` makes of the model on every worker. Raises what it raises.

        Workers in other processes import `func` by its name. Raises UnsupportedError: it has none.
        """
        from lullm.worker.extension import call_with_model  # torch is loaded with the engine

        return self.collective_rpc(call_with_model, args=(func,))

    @takes_vllms(VLLM_PROFILE)
    def start_profile(self, folder: str | Path = "profile") -> None:
        """Record where the time goes, until `stop_profile`, with torch. Raises as `Profiler.start` does."""
        with self._exclusive():
            self.llm_engine.start_profile(folder)

    def stop_profile(self) -> Path:
        """End the recording; the trace in the folder, for chrome://tracing. Raises as `Profiler.stop` does."""
        with self._exclusive():
            return self.llm_engine.stop_profile()

    def update_weights(self, weights: "Iterable[tuple[str, torch.Tensor]]") -> int:
        """Replace weights by a trainer's, under the checkpoint's names; how many. Raises as the engine's does."""
        with self._exclusive():
            return self.llm_engine.update_weights(weights)

    def expert_load(self, clear: bool = False) -> ExpertLoad:
        """How many tokens have used each expert. `clear`: it is counted anew from now on."""
        with self._exclusive():
            return self.llm_engine.expert_load(clear)

    def rebalance_experts(self) -> ExpertMove:
        """Move experts, so that all workers have as much to do. Raises as `LLMEngine.rebalance_experts` does."""
        with self._exclusive():
            return self.llm_engine.rebalance_experts()

    def shutdown(self) -> None:
        """Give all memory back; the object cannot be used afterwards. Idempotent."""
        with self._exclusive():
            self.llm_engine.shutdown()
