"""Touches the memory of KV blocks before their use. A host's arena has no memory for blocks that were never written.

A block is a small piece in each of many tensors (two per layer), and its first byte takes a whole huge page in each:
1,024 tokens of a 0.6B model touch 56 pages, which a virtual machine gets from its host in 5 ms each.
"""

from collections.abc import Sequence

import numpy as np

from lullm.errors import LullmError
from lullm.machine.memory import available_memory_bytes, resident_bytes_within
from lullm.machine.pages import HUGE_PAGE, populate
from lullm.worker.kv_pools import KVPools

_PAGES_AT_ONCE = 2
"""Huge pages in one call: a request that comes meanwhile waits at most 10 ms."""
_SHARE = 8
"""At most one part in `_SHARE` of the available memory is taken ahead."""


def touch_blocks(pools: KVPools, block_ids: Sequence[int]) -> bool:
    """Take memory for two of these blocks' huge pages that lack it, in the blocks' order; whether more lack it.

    The pages' contents stay. Does nothing (False) if memory is scarce, or the system cannot take it ahead.
    """
    lacking = [page for page in _pages_of(pools, block_ids) if resident_bytes_within(*page) < page[1]]
    try:
        available = available_memory_bytes()
    except LullmError:  # no descriptor is left to ask with: clients have all of them, for a moment
        return False
    if _SHARE * len(lacking) * HUGE_PAGE > available:
        return False
    are_there = all(populate(*page) for page in lacking[:_PAGES_AT_ONCE])
    return are_there and len(lacking) > _PAGES_AT_ONCE


def _pages_of(pools: KVPools, block_ids: Sequence[int]) -> list[tuple[int, int]]:
    """(address, bytes) of the huge pages of these blocks' arena, in the order in which a sequence fills them."""
    [arena] = (arena for arena in pools.arenas if arena.tag == "kv_cache")
    tensors = [side for cache in pools.all_device for side in cache.tensors]  # [num_blocks, ...] each
    sizes = np.array([side[0].nbytes for side in tensors])
    firsts = np.array([side.data_ptr() for side in tensors]) + np.asarray(block_ids, np.int64)[:, None] * sizes
    ends = np.stack([firsts, firsts + sizes - 1], axis=-1)  # [blocks, tensors, 2]
    pages, places = np.unique(ends.ravel() // HUGE_PAGE, return_index=True)
    starts = pages[np.argsort(places)] * HUGE_PAGE
    firsts = np.maximum(starts, arena.base_address)  # an arena may begin and end within a page
    lasts = np.minimum(starts + HUGE_PAGE, arena.base_address + arena.capacity_bytes)
    return list(zip(firsts.tolist(), (lasts - firsts).tolist(), strict=True))
