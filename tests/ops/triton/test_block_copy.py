"""Copies of blocks: order where it matters, all layers, both pools."""

import random

import pytest
import torch

from lullm.errors import UnsupportedError
from lullm.ops.cache.block_pairs import independent_batches
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton.block_copy import copy_blocks, swap_blocks
from lullm.ops.triton.device import IS_INTERPRETED, launch_device

DEVICE = launch_device()


def make_caches(num_blocks, num_layers=3, seed=0, dtype=torch.float16, row_len=24):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_blocks, 4, 2, row_len)
    return [
        LayerCache(*(torch.randn(shape, generator=generator).to(dtype) for _ in range(2))) for _ in range(num_layers)
    ]  # fmt: skip


def to_device(caches):
    return [LayerCache(*(side.to(DEVICE, copy=True) for side in cache.tensors)) for cache in caches]


def assert_equal(actual, expected):
    for cache, expected_cache in zip(actual, expected, strict=True):
        for side, expected_side in zip(cache.tensors, expected_cache.tensors, strict=True):
            assert torch.equal(side.cpu().view(torch.uint8), expected_side.view(torch.uint8))


@pytest.mark.parametrize("pairs", [[], [(0, 5)], [(0, 5), (5, 6), (0, 7)], [(1, 2), (3, 1), (2, 3)]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn], ids=str)
def test_copy(pairs, dtype):
    caches = make_caches(8, dtype=dtype)
    actual = to_device(caches)
    copy_blocks(actual, pairs)
    REFERENCE_OPS.copy_blocks(caches, pairs)
    assert_equal(actual, caches)


def test_more_chunks_than_programs():
    """Blocks of several chunks, the last one not full, and more of them than programs."""
    caches = make_caches(12, num_layers=2, row_len=1100)
    actual = to_device(caches)
    pairs = [(block, block + 6) for block in range(6)]
    copy_blocks(actual, pairs)
    REFERENCE_OPS.copy_blocks(caches, pairs)
    assert_equal(actual, caches)


def test_batches_may_run_in_any_order():
    rng = random.Random(0)
    for _ in range(300):
        pairs = [(rng.randrange(6), rng.randrange(6)) for _ in range(rng.randrange(8))]
        expected = list(range(6))
        for source, destination in pairs:
            expected[destination] = expected[source]
        blocks = list(range(6))
        for batch in independent_batches(pairs):
            for source, destination in rng.sample(batch, len(batch)):
                blocks[destination] = blocks[source]
        assert blocks == expected
    assert len(independent_batches([(0, n) for n in range(1, 50)])) == 1


def test_swap():
    device, host = make_caches(6), make_caches(4, seed=1)
    actual = to_device(device)
    pinned = [
        LayerCache(*(x.clone() if IS_INTERPRETED else x.clone().pin_memory() for x in cache.tensors)) for cache in host
    ]
    swap_blocks(actual, pinned, [(5, 0), (1, 3), (1, 2)])
    swap_blocks(pinned, actual, [(3, 0), (0, 4)])
    if not IS_INTERPRETED:
        torch.cuda.synchronize()
    REFERENCE_OPS.swap_blocks(device, host, [(5, 0), (1, 3), (1, 2)])
    REFERENCE_OPS.swap_blocks(host, device, [(3, 0), (0, 4)])
    assert_equal(actual, device)
    assert_equal(pinned, host)
    swap_blocks(actual, pinned, [])


@pytest.mark.skipif(IS_INTERPRETED, reason="the interpreter reads any memory")
def test_swap_wants_pinned_memory():
    with pytest.raises(UnsupportedError, match="pinned"):
        swap_blocks(to_device(make_caches(2)), make_caches(2), [(0, 1)])
