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


class Backlog(asyncio.Queue[EngineOutput | LullmError]):
    """A queue whose `put_nowait` keeps it short.

    Args:
        is_delta: outputs hold what is new, so that two become one by joining; else the later one says it all.
    """

    def __init__(self, is_delta: bool):
        super().__init__()
        self._is_delta = is_delta

    def _init(self, maxsize: int) -> None:
        self._queue: deque[EngineOutput | LullmError] = deque()

    def _put(self, item: EngineOutput | LullmError) -> None:
        last = self._queue[-1] if len(self._queue) >= MAX_UNREAD else None
        if not isinstance(last, RequestOutput) or not isinstance(item, RequestOutput):
            self._queue.append(item)
        elif self._is_delta:
            last.absorb(item)
        else:
            self._queue[-1] = item
