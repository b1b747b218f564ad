"""ExclusiveCalls: the calls of `LLM` that concern the engine as a whole: sleep, weights, workers, shutdown."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from lullm.engine.engine_calls import EngineCalls
from lullm.engine.interrupt import deferred_interrupt
from lullm.types.sampling_params import SamplingParams
from lullm.types.sleep import SleepState
from lullm.types.vllm_argument import VLLM_CALLS, VLLM_PROFILE, VllmNames, takes_vllms
from lullm.worker.remote_methods import call_with_model

if TYPE_CHECKING:
    import torch

    from lullm.engine.llm_engine import LLMEngine  # loads torch
    from lullm.engine.replica.engine import ReplicaEngine
    from lullm.text.tokenizer import Tokenizer

P = ParamSpec("P")
T = TypeVar("T")


def _in_turn(call: Callable[Concatenate[EngineCalls, P], T]) -> "Callable[Concatenate[ExclusiveCalls, P], T]":
    """Make a method of `LLM` from an engine's: the engine's call while no other call runs."""

    @functools.wraps(call)
    def locked(llm: "ExclusiveCalls", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with llm._exclusive():
            answer: T = getattr(llm.llm_engine, call.__name__)(*args, **kwargs)
            return answer

    return locked


class ExclusiveCalls(VllmNames):
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

    sleep = _in_turn(EngineCalls.sleep)
    explain_sleep = _in_turn(EngineCalls.explain_sleep)
    wake_up = _in_turn(EngineCalls.wake_up)
    reset_prefix_cache = takes_vllms(VLLM_CALLS)(_in_turn(EngineCalls.reset_prefix_cache))
    collective_rpc = _in_turn(EngineCalls.collective_rpc)
    update_weights = _in_turn(EngineCalls.update_weights)
    reload_weights = _in_turn(EngineCalls.reload_weights)
    expert_load = _in_turn(EngineCalls.expert_load)
    rebalance_experts = _in_turn(EngineCalls.rebalance_experts)
    add_lora = _in_turn(EngineCalls.add_lora)
    remove_lora = _in_turn(EngineCalls.remove_lora)
    pin_lora = _in_turn(EngineCalls.pin_lora)
    list_loras = _in_turn(EngineCalls.list_loras)
    start_profile = takes_vllms(VLLM_PROFILE)(_in_turn(EngineCalls.start_profile))
    stop_profile = _in_turn(EngineCalls.stop_profile)

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

    def apply_model(self, func: "Callable[[torch.nn.Module], T]") -> list[T]:
        """Call `func` with the model on every worker, and return the results. Raises what `func` raises.

        Workers in other processes import `func` by its name. Raises UnsupportedError: it has no such name.
        """
        return self.collective_rpc(call_with_model, args=(func,))

    def shutdown(self) -> None:
        """Release all memory; the object cannot be used afterwards. Idempotent."""
        with self._exclusive():
            self.llm_engine.shutdown()
