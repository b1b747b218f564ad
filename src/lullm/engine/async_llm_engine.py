"""AsyncLLMEngine: the engine on a thread of its own, behind asyncio streams. An `EngineClient`.

Everything here runs on the callers' event loops and asks for work, which the `EngineThread` does.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch

from lullm.config.engine import EngineArguments, EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.entry import Entry
from lullm.engine.client import EntryClient
from lullm.engine.llm_engine import LLMEngine
from lullm.engine.replica.client import ReplicaClient
from lullm.engine.stream_pace import StreamPace
from lullm.engine.thread.threaded_engine import ThreadedEngine
from lullm.machine.memory_ahead import MemoryAhead
from lullm.types.monitor.stats import EngineStats
from lullm.types.sleep import SleepEvent, SleepState
from lullm.types.vllm_argument import VLLM_START, takes_vllms
from lullm.types.wire.remote_call import RemoteCall

T = TypeVar("T")


class AsyncLLMEngine(EntryClient):
    """Builds its engine in the constructor, which blocks until the model is loaded, and starts the thread.

    With a `data_parallel_size` above 1 the constructor gives a `ReplicaClient`, which has the same methods.

    Args:
        stream_pause_s: seconds between two outputs of a stream; longer with many streams (`StreamPace`). Tokens drawn
            in between come together. 0: an output per step.

    Attributes and raised errors: see `EngineClient` and `LLMEngine`.
    """

    def __new__(cls, config: EngineConfig, ahead: MemoryAhead | None = None, stream_pause_s: float = 0.0) -> Any:
        return super().__new__(cls) if config.data_parallel_size == 1 else ReplicaClient(config, stream_pause_s)

    def __init__(self, config: EngineConfig, ahead: MemoryAhead | None = None, stream_pause_s: float = 0.0):
        self._engine = LLMEngine(config, has_thread=True, ahead=ahead, pace=StreamPace(stream_pause_s))
        engine = self._engine
        super().__init__(engine.opened, config.idle, engine.remote_methods, engine.input_processor)
        self._threaded = ThreadedEngine(self._engine, self.idle)
        self._entry = Entry(self._threaded.admission, self.idle)
        self._thread = self._threaded.start()

    @classmethod
    @takes_vllms(VLLM_START)
    def from_engine_args(cls, engine_args: EngineArguments) -> "AsyncLLMEngine":
        """Construct from `EngineArgs`. Blocks, and raises, as the constructor does."""
        return cls(engine_args.create_engine_config())

    @classmethod
    @takes_vllms(VLLM_START)
    def from_vllm_config(cls, vllm_config: EngineConfig) -> "AsyncLLMEngine":
        """The constructor, under vLLM's name; `create_engine_config()` of `EngineArgs` makes the config."""
        return cls(vllm_config)

    def get_num_unfinished_requests(self) -> int:
        """The number of requests that have not ended; from any thread."""
        return self._engine.get_num_unfinished_requests()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        return self._engine.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        return self._engine.sleep_state

    @property
    def idle_s(self) -> float:
        return self._threaded.sleep_control.idle_s

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        return self._threaded.sleep_control.next_sleep

    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        self._threaded.sleep_control.observe(observer)

    async def _call_workers(self, call: RemoteCall) -> list[Any]:
        return await self._call("collective_rpc", list, **call._asdict())

    async def update_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> int:
        """Replace weights; returns how many. The engine's thread iterates. Raises what iterating `weights` raises.

        Raises InvalidRequestError: the iterable calls the engine, directly or through an event loop.
        """
        return await self._call("update_weights", int, weights=self._threaded.mailbox.feeding.items(weights))

    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        call, command = self._threaded.call(verb, arguments)
        self.check_running()
        self._entry.send_arrived()
        self._threaded.mailbox.send(command)
        answer: T = await asyncio.wrap_future(call.answer)
        return answer

    def stats(self) -> EngineStats:
        return self._engine.stats()

    def check_running(self) -> None:
        self._threaded.mailbox.check_running()

    def _begin_end(self, drain: bool) -> None:
        self._entry.send_arrived()
        self._thread.stop(drain)

    async def _finish_end(self) -> None:
        await asyncio.to_thread(self._thread.join)
