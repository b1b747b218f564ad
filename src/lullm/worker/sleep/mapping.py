"""Mapping: arenas get their memory back chunk by chunk, on a thread of its own, while the first chunks are filled.

A driver takes 0.5 to 3 ms for a chunk of 256 MiB, and the bus 5 ms to fill it: what is mapped beside a copy costs
nothing. Host memory comes when it is touched, so there is nothing to wait for.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

import torch

from lullm.arena.arena import Arena


class Mapping:
    """A context manager: at the end of its `with` block all arenas are mapped, unless there was an error.

    After an error nothing more is mapped, and the caller releases what is. Nothing else may call the arenas meanwhile.

    Args:
        arenas: in the order in which they are wanted.

    Raises:
        WakeUpError: at the end, and from `awaited`: a driver refuses.
    """

    def __init__(self, arenas: Sequence[Arena]):
        self._arenas = arenas
        self._has_more = threading.Condition()
        self._mapped: dict[Arena, int] = {}  # bytes from the start that have memory
        self._is_over = self._is_wanted = False
        self._pool = ThreadPoolExecutor(1)
        self._work: Future[None]

    def __enter__(self) -> "Mapping":
        self._is_wanted = True
        self._work = self._pool.submit(self._map)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_wanted = error is None
        self._pool.shutdown()
        if error is None:
            self._work.result()

    def awaited(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same contiguous tensor, once memory stands behind it; at once for one that no arena holds. Blocking."""
        arena = next((arena for arena in self._arenas if arena.holds(tensor)), None)
        if arena is not None:
            end = tensor.data_ptr() + tensor.nbytes - arena.base_address
            with self._has_more:
                self._has_more.wait_for(lambda: self._is_over or self._mapped.get(arena, 0) >= end)
            if self._mapped.get(arena, 0) < end:
                self._work.result()  # raises the driver's refusal
        return tensor

    def finish(self) -> None:
        """Wait until all is mapped. Blocking."""
        self._work.result()

    def _map(self) -> None:
        try:
            for arena in self._arenas:
                for num_bytes in arena.map_in_parts():
                    with self._has_more:
                        self._mapped[arena] = num_bytes
                        self._has_more.notify_all()
                    if not self._is_wanted:
                        return
        finally:
            with self._has_more:
                self._is_over = True
                self._has_more.notify_all()
