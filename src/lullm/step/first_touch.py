"""FirstTouch: a step's first touch of KV blocks, on all threads, before the ops that write them.

A host's arena has no memory behind blocks that were never written, and a page of it, 2 MiB, takes a virtual machine up
to 5 ms. The op that writes keys and values would meet one page after the other, most of them on two threads at once,
which both fill a page and drop one.
"""

import mmap
from collections.abc import Sequence

import numpy as np
from torch import Tensor

from lullm.machine.pages import HUGE_PAGE
from lullm.ops.cpu.library import load_library
from lullm.units import round_up


class FirstTouch:
    """Touches the blocks of `tensors` (`[num_blocks, ...]` each). Fresh blocks are handed out by their numbers.

    Args:
        num_shares: by KV cache group, by which block ids are multiplied.
    """

    def __init__(self, tensors: Sequence[Tensor], block_size: int, num_shares: Sequence[int]):
        self._library = load_library()
        self._tensors = [(side.data_ptr(), side[0].nbytes, side.nbytes) for side in tensors]
        self._slots_per_block = block_size * np.array(num_shares, np.int64)[:, None]
        self._num_touched = 0  # blocks

    def before_writing(self, slot_mapping: np.ndarray) -> None:
        """The step writes these slots [groups, T]. Blocking, only where a block has a higher number than all before."""
        num_blocks = int((slot_mapping // self._slots_per_block).max()) + 1
        if num_blocks <= self._num_touched or self._library is None:
            return
        pages = np.concatenate([self._lacking(*tensor, num_blocks) for tensor in self._tensors])
        self._num_touched = num_blocks
        if len(pages):
            self._library.handle.lullm_touch_pages(pages.ctypes.data, len(pages), mmap.PAGESIZE)

    def forget(self) -> None:
        """The memory behind all blocks was released."""
        self._num_touched = 0

    def _lacking(self, address: int, block_bytes: int, num_bytes: int, num_blocks: int) -> np.ndarray:
        """(first byte, end) of the pages [N, 2] of one tensor that the new blocks reach into, and no old one."""
        first = address
        if self._num_touched:
            first = round_up(address + self._num_touched * block_bytes, HUGE_PAGE)
        last = min(address + num_bytes, round_up(address + num_blocks * block_bytes, HUGE_PAGE))
        starts = np.arange(first // HUGE_PAGE * HUGE_PAGE, last, HUGE_PAGE, dtype=np.int64)
        return np.stack([np.maximum(starts, first), np.minimum(starts + HUGE_PAGE, last)], axis=-1)
