"""Copies whole blocks, for all layers and pairs in one launch: for copy-on-write, and between the pools.

The kernel reads a table of addresses, so the number of caches does not matter. It copies words of 8 bytes in chunks,
and a fixed number of programs share the chunks.

The host pool is pinned memory, which a GPU reads and writes at its address (unified addressing). A copy call per block
and layer would cost more than the copied bytes (a block of one layer has some 32 KiB, a call takes some 2.5 us), and a
staging buffer would move the bytes twice. So the same kernel copies over the bus directly, with few programs. It runs
on the current stream: to swap beside other work, call it under a side stream and order the two with events.
"""

import torch
import triton
import triton.language as tl

from lullm.errors import UnsupportedError
from lullm.ops.cache.block_pairs import BlockPairs, independent_batches
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.triton.device import IS_INTERPRETED, launch_device, num_multiprocessors
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.tile import COPY_WORDS, HOST_COPY_PROGRAMS
from lullm.units import cdiv


@triton.jit(do_not_specialize=["num_pairs", "num_caches"])
def _copy_kernel(
    table_ptr,  # [2 * num_caches + 2 * num_pairs] int64: addresses from, addresses to, block ids from, block ids to
    num_pairs,
    num_caches,
    BLOCK_WORDS: tl.constexpr,  # 8 bytes each, per block and cache
    CHUNK: tl.constexpr,
):
    CHUNKS: tl.constexpr = (BLOCK_WORDS + CHUNK - 1) // CHUNK
    words = tl.arange(0, CHUNK)
    for item in range(tl.program_id(0), num_pairs * num_caches * CHUNKS, tl.num_programs(0)):
        chunk = item % CHUNKS
        cache = item // CHUNKS % num_caches
        pair = item // (CHUNKS * num_caches)
        source = tl.load(table_ptr + cache).to(tl.pointer_type(tl.int64))
        target = tl.load(table_ptr + num_caches + cache).to(tl.pointer_type(tl.int64))
        pair_ptr = table_ptr + 2 * num_caches + pair
        places = chunk * CHUNK + words
        source += tl.load(pair_ptr) * BLOCK_WORDS
        target += tl.load(pair_ptr + num_pairs) * BLOCK_WORDS
        mask = places < BLOCK_WORDS
        content = tl.load(tl.multiple_of(source, 16) + places, mask=mask)
        tl.store(tl.multiple_of(target, 16) + places, content, mask=mask)


COPY = Kernel(_copy_kernel)


def copy_blocks(caches: list[LayerCache], pairs: BlockPairs) -> None:
    """See `Ops.copy_blocks`. Does not wait for the copies."""
    for batch in independent_batches(pairs):
        _copy(caches, caches, batch, num_multiprocessors() * 4)


def swap_blocks(sources: list[LayerCache], destinations: list[LayerCache], pairs: BlockPairs) -> None:
    """See `Ops.swap_blocks`; at least one side is on the device. Does not wait for the copies.

    Raises:
        UnsupportedError: a pool in host memory is not pinned.
    """
    if pairs and sources:
        for caches in (sources, destinations):
            cache = caches[0].key
            if cache.device.type == "cpu" and not IS_INTERPRETED and not cache.is_pinned():
                raise UnsupportedError("blocks are swapped with pinned host memory only")
        _copy(sources, destinations, pairs, HOST_COPY_PROGRAMS)


def _copy(sources: list[LayerCache], destinations: list[LayerCache], pairs: BlockPairs, max_programs: int) -> None:
    from_sides, to_sides = ([side for cache in caches for side in cache.tensors] for caches in (sources, destinations))
    block_bytes = from_sides[0][0].numel() * from_sides[0].dtype.itemsize
    assert block_bytes % 16 == 0, "blocks are moved in pieces of 16 bytes"
    addresses = [side.data_ptr() for side in from_sides + to_sides]
    table = torch.tensor(addresses + [pair[0] for pair in pairs] + [pair[1] for pair in pairs], dtype=torch.int64)
    device = launch_device()
    num_items = len(pairs) * len(from_sides) * cdiv(block_bytes // 8, COPY_WORDS)
    COPY[(min(num_items, max_programs),)](
        table if device.type == "cpu" else table.pin_memory().to(device, non_blocking=True),
        len(pairs),
        len(from_sides),
        BLOCK_WORDS=block_bytes // 8,
        CHUNK=COPY_WORDS,
        num_warps=8,
    )
