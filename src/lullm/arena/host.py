"""HostArena: one anonymous private mapping of host memory that an engine owns and cuts tensors from.

The mapping is made once and its address stays for the arena's life. Physical memory is taken page by page at the
first touch, so a large arena that is never written costs address space only.

The seam for later: users of an arena know `tag`, `capacity_bytes`, `used_bytes`, `base_address`, `empty`, `release`
and `close`, and nothing else. An arena on a device offers the same names.
"""

import contextlib
import mmap
from collections.abc import Sequence
from math import prod

import torch

from lullm.errors import CacheSizeError, LullmError
from lullm.units import MIB, format_bytes, round_up

ALIGNMENT = 128
"""Bytes. Two cache lines: no tensor shares one with its neighbour, not even through the adjacent-line prefetcher."""

_HUGE_PAGE = 2 * MIB


class HostArena:
    """Host memory for the tensors of one kind (`tag`), handed out left to right and given back all at once.

    Args:
        tag: what lives here ('weights', 'kv_cache'), for people and logs.
        capacity_bytes: rounded up to whole huge pages of 2 MiB.

    Raises:
        CacheSizeError: the operating system refuses a mapping of this size.
    """

    def __init__(self, tag: str, capacity_bytes: int):
        if capacity_bytes < 1:
            raise CacheSizeError(f"an arena needs at least one byte, {tag!r} asks for {capacity_bytes}")
        self.tag = tag
        self.capacity_bytes = round_up(capacity_bytes, _HUGE_PAGE)
        self.used_bytes = 0
        try:
            self._mapping: mmap.mmap | None = mmap.mmap(
                -1, self.capacity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError) as error:
            raise CacheSizeError(
                f"cannot reserve {format_bytes(self.capacity_bytes)} of memory for {tag!r}: {error}"
            ) from None
        self._advise("MADV_HUGEPAGE")
        self.base_address = torch.frombuffer(self._mapping, dtype=torch.uint8, count=1).data_ptr()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of the arena's memory, aligned to 128 bytes. It reads as zeros until it is written.

        Raises:
            CacheSizeError: it does not fit into what is left. LullmError: the arena is closed.
        """
        if self._mapping is None:
            raise LullmError(f"the arena {self.tag!r} is closed")
        num_elements = prod(shape)
        num_bytes = num_elements * dtype.itemsize
        offset = round_up(self.used_bytes, ALIGNMENT)
        if offset + num_bytes > self.capacity_bytes:
            raise CacheSizeError(
                f"the arena {self.tag!r} is full: {format_bytes(num_bytes)} asked for, "
                f"{format_bytes(max(0, self.capacity_bytes - offset))} of {format_bytes(self.capacity_bytes)} left"
            )
        if num_elements == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        tensor = torch.frombuffer(self._mapping, dtype=dtype, count=num_elements, offset=offset)
        self.used_bytes = offset + num_bytes
        return tensor.view(tuple(shape))

    def release(self) -> None:
        """Give the physical memory back to the operating system now; the address range stays. Idempotent.

        Tensors of this arena keep their addresses and read as zeros; memory comes back page by page as they are
        written again.

        Raises:
            OSError: the operating system refuses, and the memory is still held.
        """
        if self._mapping is not None:
            self._mapping.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Give the memory back to the operating system now. Idempotent.

        Tensors of this arena that are still around stay safe to touch but lose their contents (they read as zeros);
        the address range itself goes when the last of them does.
        """
        if self._mapping is None:
            return
        self._advise("MADV_DONTNEED")
        # Not `self._mapping.close()`: torch keeps the mapping alive but does not lock it against closing, and a tensor
        # that is still in use would point nowhere. Dropped, it closes itself after the last tensor.
        self._mapping = None

    def _advise(self, advice: str) -> None:
        if self._mapping is None or not hasattr(mmap, advice):
            return
        with contextlib.suppress(OSError):  # advice: a kernel without huge pages serves small ones
            self._mapping.madvise(getattr(mmap, advice))
