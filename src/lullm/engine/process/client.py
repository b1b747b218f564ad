"""ProcessClient: an engine in a process of its own, as an `EngineClient`. Loads no torch.

Requests are rendered, tokenized and checked in this process. The engine's process computes, finds stop strings, and
makes the text: the end of a sequence must be known before its next step.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from lullm.config.engine import EngineConfig
from lullm.config.option.sleep_after import SleepRung
from lullm.engine.caller.entry import Entry
from lullm.engine.client import EntryClient
from lullm.engine.process.link import EngineLink
from lullm.engine.process.spawn import EngineProcess
from lullm.engine.process.weight_feed import WeightFeed, feed_all
from lullm.engine.start.model import OpenedModel, open_model
from lullm.errors import InvalidRequestError
from lullm.executor.remote.codec import decode, encode
from lullm.executor.remote.message import with_names
from lullm.types.monitor.stats import EngineStats
from lullm.types.sleep import SleepEvent, SleepState
from lullm.types.wire.remote_call import RemoteCall

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class ProcessClient(EntryClient):
    """Starts the process in the constructor, which blocks until the engine is ready.

    Args:
        stream_pause_s: see `AsyncLLMEngine`.
        cores: the only ones that the engine runs on; None: any.
        opened: the model, if it was read already.
        timeout_s: the process is lost after so long without a heartbeat; None: as `config` says of workers.
        environment: variables of the process beside those of this one.

    Methods, attributes and raised errors: see `EngineClient` and `LLMEngine`. Raises UnsupportedError: an option cannot
    be sent to another process.
    """

    def __init__(
        self,
        config: EngineConfig,
        stream_pause_s: float = 0.0,
        cores: Sequence[int] | None = None,
        opened: OpenedModel | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self._process = EngineProcess(config, stream_pause_s, cores, timeout_s, environment)
        try:
            model = opened or open_model(config)  # while the other process imports torch
            ready = self._process.wait_ready()
        except BaseException:
            self._process.close()
            raise
        fitted = dataclasses.replace(model.config, max_model_len=ready.max_model_len)
        super().__init__(dataclasses.replace(model, config=fitted), config.idle, frozenset(ready.remote_methods))
        self._observers: list[Callable[[SleepEvent], None]] = []
        self._updates = asyncio.Lock()
        self._link = EngineLink(self._process, ready.status, self.tokenizer.decode_token, self._hear)
        self._entry = Entry(self._link, self.idle)

    async def _call_workers(self, call: RemoteCall) -> list[Any]:
        """Functions are sent by name. Raises UnsupportedError: one has no name that another process can import."""
        try:
            given = encode([*with_names([call.method]), call.timeout, with_names(call.args), dict(call.kwargs or {})])
        except TypeError as error:
            raise InvalidRequestError(f"collective_rpc: {error}; give plain data or tensors", "args") from None
        found = await self._call("collective_rpc", bytes, given=b"".join(given))
        return cast(list[Any], decode(memoryview(found)))

    async def _call(self, verb: str, kind: type[T], **arguments: Any) -> T:
        self._entry.send_arrived()
        return await self._link.call(verb, kind, **arguments)

    def weight_feed(self) -> WeightFeed:
        """A feed for an update that sends weights one by one."""
        return WeightFeed(self._link, self._updates)

    async def update_weights(self, weights: "Iterable[tuple[str, Tensor]]") -> int:
        """Replace weights; returns how many. A thread iterates. Raises what iterating `weights` raises.

        Raises InvalidRequestError: the iterable calls the engine, directly or through an event loop.
        """
        self._link.check_running()
        async with self.weight_feed() as feed:
            await feed_all([feed], self._link.feeding.items(weights), None)
            return await feed.end()

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        return self._link.status.sleeping_tags

    @property
    def sleep_state(self) -> SleepState:
        return self._link.status.sleep_state

    @property
    def idle_s(self) -> float:
        since = self._link.status.idle_since
        return 0.0 if since is None else time.monotonic() - since

    @property
    def next_sleep(self) -> tuple[SleepRung, float] | None:
        status = self._link.status
        return None if status.rung is None else (status.rung, max(status.rung_due - time.monotonic(), 0.0))

    def observe_sleep(self, observer: Callable[[SleepEvent], None]) -> None:
        self._observers.append(observer)

    def stats(self) -> EngineStats:
        return self._link.status.stats

    def check_running(self) -> None:
        self._link.check_running()

    def check_alive(self) -> None:
        """As `check_running`, from any thread."""
        self._link.check_alive()

    def _begin_end(self, drain: bool) -> None:
        self._entry.send_arrived()
        self._link.stop(drain)

    async def _finish_end(self) -> None:
        await self._link.join()
        if self.tokenizer.chat_template is not None:
            self.tokenizer.chat_template.close()

    def close(self) -> None:
        """End the process now, without an event loop. Idempotent."""
        self._process.close()

    def _hear(self, event: SleepEvent) -> None:
        for observer in self._observers:
            observer(event)
