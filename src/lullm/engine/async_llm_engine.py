"""AsyncLLMEngine: the engine on a thread of its own, behind asyncio streams. An `EngineClient`.

Everything here runs on the callers' event loops and asks for work, which the `EngineThread` does.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack

import torch

from lullm.config.engine import EngineArguments, EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.entry import Entry, EntryClient
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.replica.client import ReplicaClient
from lullm.engine.stream_pace import StreamPace
from lullm.engine.thread.admission import Admission
from lullm.engine.thread.engine_thread import EngineThread
from lullm.engine.thread.mailbox import EngineCall, Mailbox
from lullm.engine.thread.sleep_watch import SleepWatch
from lullm.machine.memory_ahead import MemoryAhead
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sleep import (
    ForecastArguments,
    SleepArguments,
    SleepEvent,
    SleepForecast,
    SleepOptions,
    SleepReport,
    SleepState,
    WakeReport,
)
from lullm.types.watch.occupancy import Occupancy
from lullm.types.watch.stats import EngineStats

T = TypeVar("T")


class AsyncLLMEngine(EntryClient):
    """Builds its engine in the constructor, which blocks until the model is loaded, and starts the thread.

    With a `data_parallel_size` above 1 the constructor gives a `ReplicaClient`, which has the same methods.

    Args:
        stream_pause_s: seconds between two outputs of a stream, and longer with many (`StreamPace`); tokens
            drawn meanwhile come together. 0: an output per step.

    Attributes and raised errors: see `EngineClient` and `LLMEngine`.
    """

    def __new__(cls, config: EngineConfig, ahead: MemoryAhead | None = None, stream_pause_s: float = 0.0) -> Any:
        return super().__new__(cls) if config.data_parallel_size == 1 else ReplicaClient(config, stream_pause_s)

    def __init__(self, config: EngineConfig, ahead: MemoryAhead | None = None, stream_pause_s: float = 0.0):
        self._engine = LLMEngine(config, has_thread=True, ahead=ahead, pace=StreamPace(stream_pause_s))
        self.config = self._engine.config
        self.idle = config.idle
        self.model_config = self._engine.model_config
        self.tokenizer = self._engine.tokenizer
        self.default_params = self._engine.default_params
        self.remote_methods = self._engine.remote_methods
        super().__init__(self._engine.input_processor)
        self._mailbox = Mailbox()
        self._watch = SleepWatch(self._engine, self._mailbox, self.idle)
        self._admission = Admission(self._engine, self._mailbox, self._watch, self.idle)
        self._entry = Entry(self._admission, self.idle)
        self._thread = EngineThread(self._engine, self._mailbox, self._watch, self._admission)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArguments) -> "AsyncLLMEngine":
        """With the options of an `EngineArgs`. Blocks, and raises, as the constructor does."""
        return cls(engine_args.create_engine_config())

    async def abort(self, request_id: str | Iterable[str]) -> None:
        await self._call(lambda: self._engine.abort_request(request_id))

    def get_num_unfinished_requests(self) -> int:
        """How many requests have not ended; from any thread."""
        return self._engine.get_num_unfinished_requests()

    async def start_profile(self, folder: str | Path = "profile") -> None:
        await self._call(lambda: self._engine.start_profile(folder))

    async def stop_profile(self) -> Path:
        return await self._call(self._engine.stop_profile)

    async def sleep(self, level: int = 1, **arguments: Unpack[SleepArguments]) -> SleepReport:
        options = SleepOptions(level, **arguments)
        call = EngineCall(lambda: self._watch.sleep(options))
        return await self._answer(call, lambda: self._watch.begin_sleep(call, options))

    async def wake_up(self, tags: Sequence[str] | None = None) -> WakeReport:
        return await self._call(lambda: self._watch.wake_up(tags))

    async def explain_sleep(self, level: int = 1, **arguments: Unpack[ForecastArguments]) -> SleepForecast:
        return await self._call(lambda: self._engine.explain_sleep(level, **arguments))

    async def resume_generation(self) -> None:
        await self._call(self._watch.resume)

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        return self._engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        return self._engine.sleep_state

    @property
    def idle_s(self) -> float:
        return self._watch.idle_s

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        return self._watch.next_sleep

    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        self._watch.observe(observer)

    async def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        return await self._call_foreign(lambda: self._engine.collective_rpc(method, timeout, args, kwargs))

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Replace weights; how many. The engine's thread iterates. Raises what iterating `weights` does.

        What iterates cannot call the engine, by way of an event loop neither: InvalidRequestError.
        """
        items = self._mailbox.feeding.items(weights)
        return await self._call_foreign(lambda: self._engine.update_weights(items))

    async def expert_load(self, clear: bool = False) -> ExpertLoad:
        return await self._call(lambda: self._engine.expert_load(clear))

    async def rebalance_experts(self) -> ExpertMove:
        return await self._call(self._engine.rebalance_experts)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return await self._call(lambda: self._engine.reset_prefix_cache(reset_running_requests))

    async def _call(self, function: Callable[[], T]) -> T:
        """The result of `function`, run on the engine's thread."""
        call = EngineCall(function)
        return await self._answer(call, call.run)

    async def _call_foreign(self, function: Callable[[], T]) -> T:
        """The same, for code of the caller, which gets its errors as they are."""

        def run() -> T:
            self._watch.restart_clock()
            return function()

        call = EngineCall(run, is_foreign=True)
        return await self._answer(call, call.run)

    async def _answer(self, call: EngineCall[T], command: Callable[[], None]) -> T:
        """Send a command that sees to `call`; its answer."""
        self.check_running()
        self._entry.send_arrived()
        self._mailbox.send(command)
        return await asyncio.wrap_future(call.answer)

    def stats(self) -> EngineStats:
        return self._engine.stats()

    async def occupancy(self, max_cells: int) -> Occupancy:
        return await self._call(lambda: self._engine.occupancy(max_cells))

    def check_running(self) -> None:
        self._mailbox.check_running()

    async def shutdown(self, drain: bool = True) -> None:
        self._entry.send_arrived()
        self._thread.stop(drain)
        await asyncio.to_thread(self._thread.join)
