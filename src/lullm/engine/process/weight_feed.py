"""Sends the weights of an update to an engine in another process, each once the engine asks for it.

The engine's thread waits for each weight, as for a caller's iterable in its own process: no step comes in between.
"""

import asyncio
import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from lullm.engine.process.message import Weight
from lullm.errors import InvalidRequestError, LullmError
from lullm.executor.remote.codec import decode, encode

if TYPE_CHECKING:
    from torch import Tensor

    from lullm.engine.process.link import EngineLink


def encode_weight(weight: "tuple[str, Tensor]") -> bytes:
    """Encode a weight, for any number of engines. Raises InvalidRequestError: it has no bytes."""
    name, tensor = weight
    try:
        return b"".join(encode([name, tensor]))
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"update_weights: {name} cannot go to an engine in another process: {error}"
        raise InvalidRequestError(reason, "weights") from None


class WeightFeed:
    """An update of one engine, as an `async with` block. An error in the block aborts the update. One at a time per
    engine.

    Args:
        turn: a lock that is held during the update.
    """

    def __init__(self, link: "EngineLink", turn: asyncio.Lock):
        self._link = link
        self._turn = turn
        self._update: asyncio.Future[Any]

    async def __aenter__(self) -> Self:
        await self._turn.acquire()
        self._update = asyncio.ensure_future(self._link.call("update_weights", int))
        return self

    async def put(self, data: bytes | None) -> bool:
        """Send the next weight (`encode_weight`) once the engine takes it. Returns whether the engine wants more."""
        if not self._update.done():
            await self._give(data)
        return not self._update.done()

    async def end(self) -> int:
        """End the update; returns the number of weights that were used. Raises as the update does."""
        await self.put(None)
        num_weights: int = await self._update
        return num_weights

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._update.done():
                await self._give(None, is_broken=True)
            await asyncio.wait([self._update])
            if error is not None and (end := self._update.exception()) is not error:
                for note in getattr(end, "__notes__", ()):
                    error.add_note(note)  # which weights were replaced
        finally:
            self._turn.release()

    async def _give(self, data: bytes | None, is_broken: bool = False) -> None:
        """Return once the engine takes it, or the update has ended: an engine that has failed takes no more."""
        given: asyncio.Future[Any] = asyncio.ensure_future(self._link.give(data, is_broken))
        try:
            await asyncio.wait([self._update, given], return_when=asyncio.FIRST_COMPLETED)
        finally:
            given.cancel()
            await asyncio.gather(given, return_exceptions=True)


async def feed_all(
    feeds: Sequence[WeightFeed], items: "Iterator[tuple[str, Tensor]]", iterating: Executor | None
) -> None:
    """Send weights to engines, each once all have taken the one before; until an engine wants no more.

    Args:
        iterating: the executor that iterates `items`; None: a thread.

    Raises what iterating `items` raises.
    """
    loop = asyncio.get_running_loop()
    while (item := await loop.run_in_executor(iterating, next, items, None)) is not None:
        data = await asyncio.to_thread(encode_weight, item)
        if not all(await asyncio.gather(*(feed.put(data) for feed in feeds))):
            return


class WeightInbox:
    """The weights of one update as an iterable for the engine's thread.

    Args:
        accept: tells the caller that the engine wants the weight of this number. On the engine's thread.
    """

    def __init__(self, accept: Callable[[int], None]):
        self._accept = accept
        self._weights: queue.SimpleQueue[Weight] = queue.SimpleQueue()

    def put(self, weight: Weight) -> None:
        """Add a weight. On the thread that reads commands."""
        self._weights.put(weight)

    def __iter__(self) -> "Iterator[tuple[str, Tensor]]":
        """Iterate over the weights. Raises LullmError: the caller has aborted the update."""
        while True:
            weight = self._weights.get()
            self._accept(weight.serial)
            if weight.is_broken:
                raise LullmError("the caller has broken the update off")
            if weight.data is None:
                return
            name, tensor = decode(memoryview(weight.data))
            yield name, tensor
