"""ArenaMapping: maps the memory of arenas chunk by chunk, on a separate thread, while the first chunks are filled.

A driver takes 0.5 to 3 ms for a chunk of 256 MiB, and the bus 5 ms to fill it: mapping during a copy takes no extra
time. Host memory is mapped by a touch, without a wait.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from lullm.arena.arena import Arena


class ArenaMapping:
    """Starts at once, and always ends with `end`. Before that no other code may call the arenas.

    Args:
        arenas: in the order of their use.

    Raises:
        WakeUpError: from `awaited` and `finish`: a driver refuses, for these arenas or for some before them.
    """

    def __init__(self, arenas: Sequence[Arena]):
        self._arenas = arenas
        self._has_more = threading.Condition()
        self._mapped: dict[Arena, int] = {}  # bytes from the start that have memory
        self._finished: set[Arena] = set()
        self._is_over, self._is_wanted = False, True
        pool = ThreadPoolExecutor(1)
        self._work = pool.submit(self._map)
        pool.shutdown(wait=False)

    def awaited(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same contiguous tensor, once its memory is mapped; at once for a tensor outside the arenas. Blocking."""
        arena = next((arena for arena in self._arenas if arena.holds(tensor)), None)
        if arena is not None:
            self._await(arena, tensor.data_ptr() + tensor.nbytes - arena.base_address)
        return tensor

    def finish(self, arenas: Sequence[Arena]) -> None:
        """Wait until these are mapped; `end` leaves them mapped. Blocking."""
        for arena in arenas:
            self._await(arena, arena.capacity_bytes)
        self._finished.update(arenas)

    def covers(self, arenas: Sequence[Arena]) -> bool:
        """Whether these are among its arenas."""
        return set(arenas).issubset(self._arenas)

    def end(self) -> list[Arena]:
        """Stop mapping. Returns the arenas without a `finish`. Blocks for one call of the driver. Idempotent."""
        self._is_wanted = False
        self._work.exception()  # blocks; callers that waited for memory have got the error
        return [arena for arena in self._arenas if arena not in self._finished]

    def _await(self, arena: Arena, num_bytes: int) -> None:
        with self._has_more:
            self._has_more.wait_for(lambda: self._is_over or self._mapped.get(arena, 0) >= num_bytes)
        if self._mapped.get(arena, 0) < num_bytes:
            self._work.result()  # raises the driver's refusal

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
