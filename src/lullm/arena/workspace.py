"""Workspace: memory for the intermediate results of a recorded computation.

A replayed call writes to the same address as when it was recorded. So a result's address must stay, and only a result
that is made after it was dropped may reuse it. `try_empty` therefore returns the lowest free range of an arena, and
takes it back with the last tensor over it. All results together then need only the memory of the computation's peak,
and that stays in the caches.
"""

from collections import deque
from collections.abc import Sequence
from math import prod

import torch

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.arena.driver.dlpack import over_storage, same_memory, view
from lullm.units import round_up

_Range = tuple[int, int]  # start and end, in bytes from the arena's start


class Workspace:
    """Ranges of an arena. One thread calls it; any thread may drop a tensor.

    Contents matter only while a computation runs, so the arena may be released between two computations.

    Args:
        arena: an empty one; all of it is used.
    """

    def __init__(self, arena: Arena):
        self._memory = arena.empty((arena.capacity_bytes,), torch.uint8)
        self._device = arena.backend.dlpack_device
        self._free: list[_Range] = [(0, arena.capacity_bytes)]  # in order; adjacent ranges are merged
        # A destructor may run anywhere and must not wait for a lock, so it only appends here.
        self._returned: deque[_Range] = deque()

    def try_empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor | None:
        """A contiguous tensor, aligned to 128 bytes, of undefined contents; None if there is no room."""
        num_bytes = round_up(max(prod(shape) * dtype.itemsize, 1), ALIGNMENT)
        self._collect()
        for index, (start, end) in enumerate(self._free):
            if end - start >= num_bytes:
                rest = (start + num_bytes, end)
                self._free[index : index + 1] = [rest] if rest[0] < end else []
                owner = _Owner(self._returned, (start, rest[0]))
                flat = view(self._memory.data_ptr() + start, num_bytes, self._device, owner)
                return over_storage(flat, dtype, shape)
        return None

    def borrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same tensor without a hold on its range, which may be reused while this tensor lives.

        Strides stay: logits of workers that share a head may be a part of longer rows.
        """
        return same_memory(tensor, self._device, self._memory)

    def _collect(self) -> None:
        """Merge the returned ranges into the free ones."""
        if not self._returned:
            return
        while self._returned:
            self._free.append(self._returned.popleft())
        merged: list[_Range] = []
        for start, end in sorted(self._free):
            if merged and merged[-1][1] == start:
                merged[-1] = (merged[-1][0], end)
            else:
                merged.append((start, end))
        self._free = merged


class _Owner:
    """All tensors over a range hold it; the last one returns the range."""

    def __init__(self, returned: deque[_Range], taken: _Range):
        self._returned, self._taken = returned, taken

    def __del__(self) -> None:
        self._returned.append(self._taken)
