"""Backlog: the outputs of one request that its reader has not taken yet; at most `MAX_UNREAD`.

Memory must not grow with every step when a client reads slowly or not at all. Once `MAX_UNREAD` outputs wait, a new one
is merged into the last of them. So the reader misses no token, and the backlog is never larger than the answer.

A `Reader` that is ready gets its output within `put`, so that all outputs of a step leave in one pass. Waking a task
for each took most of an output's time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from lullm.errors import LullmError
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput

MAX_UNREAD = 64


class Reader(Protocol):
    """Takes the outputs of requests as they come, on its event loop."""

    @property
    def is_ready(self) -> bool:
        """Whether it can take an output now."""
        ...

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call `call` once it can take outputs again."""
        ...

    def take(self, output: EngineOutput) -> None:
        """Take the next output. An exception ends the request."""
        ...


class Backlog:
    """The waiting outputs for one reader, on its event loop. An `asyncio.Queue` takes 5 us more per output.

    Args:
        is_delta: outputs hold only new text, so two are merged by joining them; otherwise the later one replaces the
            earlier.
    """

    def __init__(self, is_delta: bool):
        self._is_delta = is_delta
        self._items: deque[EngineOutput | LullmError] = deque()
        self._taker: asyncio.Future[None] | None = None
        self._reader: Reader | None = None
        self._end: asyncio.Future[LullmError | None] | None = None  # done once the reader has had the last output

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: EngineOutput | LullmError) -> None:
        """Add an output, or the error that ends the request."""
        if self._reader is not None and not self._items and self._reader.is_ready:
            self._give(self._reader, item)
            return
        if self._reader is not None and not self._items:
            self._reader.when_ready(self._give_all)
        last = self._items[-1] if len(self._items) >= MAX_UNREAD else None
        if not isinstance(last, RequestOutput) or not isinstance(item, RequestOutput):
            self._items.append(item)
        elif self._is_delta:
            last.absorb(item)
        else:
            self._items[-1] = item
        if self._taker is not None and not self._taker.done():
            self._taker.set_result(None)

    async def take(self) -> EngineOutput | LullmError:
        """Wait for the oldest item and remove it."""
        while not self._items:
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        return self._items.popleft()

    async def pour(self, reader: Reader) -> LullmError | None:
        """Give `reader` everything up to the last output or the error. Returns the error; raises the reader's own."""
        self._reader, self._end = reader, asyncio.get_running_loop().create_future()
        self._give_all()
        return await self._end

    def _give_all(self) -> None:
        """Give the waiting items to the reader while it is ready."""
        assert self._reader is not None
        while self._items and self._reader.is_ready:
            self._give(self._reader, self._items.popleft())
        if self._items:
            self._reader.when_ready(self._give_all)

    def _give(self, reader: Reader, item: EngineOutput | LullmError) -> None:
        assert self._end is not None
        if self._end.done():  # the reader has failed, or gone
            return
        try:
            if isinstance(item, LullmError):
                self._end.set_result(item)
            else:
                reader.take(item)
                if item.finished:
                    self._end.set_result(None)
        except Exception as error:
            self._end.set_exception(error)
