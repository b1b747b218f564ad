"""Layers of two sizes over the same blocks: what each writes and reads is what it would in a cache of its own."""

import pytest
import torch

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu.library import absence
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

VERSIONS = [TORCH_CPU_OPS, REFERENCE_OPS] + ([NATIVE_CPU_OPS] if absence() is None else [])
NUM_BLOCKS, BLOCK_SIZE, NUM_TOKENS = 6, 4, 10
WIDE, NARROW = 32, 16


def blocks_of(dtype, row_len, num_blocks=NUM_BLOCKS):
    empty = 99 if dtype == torch.int8 else float("nan")
    return LayerCache(*(torch.full((num_blocks, BLOCK_SIZE, 1, row_len), empty, dtype=dtype) for _ in range(2)))


def run(ops, cache, block_ids, head_size, seed):
    """Write ten tokens of a sequence into these blocks, the last seven attend."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(NUM_TOKENS, 3 + 2, head_size, generator=generator)
    table = torch.rand(NUM_TOKENS, head_size, generator=generator)
    positions = torch.arange(NUM_TOKENS)
    slots = torch.tensor([block_ids[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(NUM_TOKENS)])
    q = ops.rope_and_cache(qkv, None, positions, table, cache, slots)
    layout = AttentionLayout([7], [NUM_TOKENS], torch.tensor([block_ids]), slots[3:], BLOCK_SIZE)
    prepared = ops.prepare_attention(DeviceLayout.of(layout))
    return ops.attention(q[3:], cache, prepared, CausalScores(0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)
@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
def test_a_wide_layer_beside_two_narrow_ones(ops, dtype):
    """With int8 a slot has 36 bytes per token: two rows of 18, or one of 34 with two to spare."""
    extra = 2 if dtype == torch.int8 else 0
    slot = blocks_of(dtype, 2 * (NARROW + extra))
    wide, narrow = [3, 0, 5], [2, 4, 1]
    layers = [slot.share(0, 1, 1), slot.share(0, 2, 1), slot.share(1, 2, 1)]
    assert [layer.num_blocks for layer in layers] == [NUM_BLOCKS, 2 * NUM_BLOCKS, 2 * NUM_BLOCKS - 1]
    found = [
        run(ops, layers[0], wide, WIDE, 0),
        run(ops, layers[1], [2 * block_id for block_id in narrow], NARROW, 1),
        run(ops, layers[2], [2 * block_id for block_id in narrow], NARROW, 2),
    ]
    alone = [run(ops, blocks_of(dtype, WIDE + extra), wide, WIDE, 0)]
    alone += [run(ops, blocks_of(dtype, NARROW + extra), narrow, NARROW, seed) for seed in (1, 2)]
    assert all(map(torch.equal, found, alone))


@pytest.mark.parametrize("ops", VERSIONS, ids=lambda ops: ops.name)
def test_blocks_move_whole(ops):
    """Copies and swaps take a slot's blocks by their own numbers, whatever shares they have."""
    slot, host = blocks_of(torch.float32, 2 * NARROW), blocks_of(torch.float32, 2 * NARROW, 3)
    layers = [slot.share(number, 2, 1) for number in range(2)]
    before = [run(ops, layer, [4, 8, 2], NARROW, seed) for seed, layer in enumerate(layers)]
    ops.swap_blocks([slot], [host], [(2, 0), (4, 1), (1, 2)])
    slot.key.fill_(torch.nan), slot.value.fill_(torch.nan)
    ops.swap_blocks([host], [slot], [(0, 5), (1, 3), (2, 0)])
    layout = AttentionLayout(
        [7], [NUM_TOKENS], torch.tensor([[10, 6, 0]]), torch.zeros(7, dtype=torch.int64), BLOCK_SIZE
    )
    for seed, (layer, expected) in enumerate(zip(layers, before, strict=True)):
        again = run(ops, blocks_of(torch.float32, NARROW).share(0, 1, 1), [0, 1, 2], NARROW, seed)
        assert torch.equal(again, expected)
        q = query_of(ops, seed)
        assert torch.equal(
            ops.attention(q[3:], layer, ops.prepare_attention(DeviceLayout.of(layout)), CausalScores(0.3)), expected
        )


def query_of(ops, seed):
    """The queries that `run` attends with."""
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(NUM_TOKENS, 3 + 2, NARROW, generator=generator)
    table = torch.rand(NUM_TOKENS, NARROW, generator=generator)
    slots = torch.arange(NUM_TOKENS)
    return ops.rope_and_cache(qkv, None, slots, table, blocks_of(torch.float32, NARROW), slots)
