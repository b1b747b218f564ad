"""Backlog: the outputs of one request that its reader has not taken yet, of which there are never many.

A client that reads slowly, or not at all, must not make memory grow with every step. Once `MAX_UNREAD` outputs wait, a
new one goes into the last of them: the reader misses no token, and what waits takes no more than the answer itself.
"""

import asyncio
from collections import deque

from lullm.errors import LullmError
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput

MAX_UNREAD = 64


class Backlog:
    """What waits for one reader, on its event loop. An `asyncio.Queue`, for many readers, takes 5 us more an output.

    Args:
        is_delta: outputs hold what is new, so that two become one by joining; else the later one says it all.
    """

    def __init__(self, is_delta: bool):
        self._is_delta = is_delta
        self._items: deque[EngineOutput | LullmError] = deque()
        self._reader: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: EngineOutput | LullmError) -> None:
        """Add an output, or the error that is the last of all."""
        last = self._items[-1] if len(self._items) >= MAX_UNREAD else None
        if not isinstance(last, RequestOutput) or not isinstance(item, RequestOutput):
            self._items.append(item)
        elif self._is_delta:
            last.absorb(item)
        else:
            self._items[-1] = item
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    async def take(self) -> EngineOutput | LullmError:
        """The oldest, once there is one."""
        while not self._items:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._items.popleft()
