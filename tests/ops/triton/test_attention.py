"""Decode and prefill attention against the golden version: NaN and ids out of range stand where nothing may be read."""

import dataclasses
import math
import random

import pytest
import torch

from lullm.errors import UnsupportedError
from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout, new_semaphores
from lullm.ops.selection import REFERENCE_OPS, with_features
from lullm.ops.triton import decode_attention, prefill_attention
from lullm.ops.triton.attention import attention, gathered_attention, invariant_attention
from lullm.ops.triton.decode_attention import MAX_NUM_KV_HEADS, MAX_SPLITS, launch_decode, num_splits
from lullm.ops.triton.device import IS_INTERPRETED, launch_device
from lullm.ops.triton.prefill_attention import launch_prefill, num_prefill_splits
from lullm.ops.triton.table import TRITON_OPS
from lullm.ops.triton.tile import DecodeTile, PrefillTile
from lullm.types.layer_kind import first_seen

DEVICE = launch_device()
# Triton's interpreter rounds to bfloat16 wrongly.
DTYPES = [torch.float32, torch.float16] + ([] if IS_INTERPRETED else [torch.bfloat16])
TOLERANCE = {torch.float32: 5e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}
GARBAGE = 10**8


def make_step(
    shape, heads=(4, 2), head_size=16, block_size=16, dtype=torch.float32, window=None, seed=0, is_chunked=False
):
    """Scattered blocks; NaN in every slot and garbage in every entry of a table that must not be read."""
    generator = torch.Generator().manual_seed(seed)
    num_q_heads, num_kv_heads = heads
    needed = [-(-context_len // block_size) for _, context_len in shape]
    ids = list(range(sum(needed) + 3))
    random.Random(seed).shuffle(ids)
    tables = torch.full((len(shape), max(needed) + 2), GARBAGE, dtype=torch.int64)
    caches = [torch.full((len(ids), block_size, num_kv_heads, head_size), float("nan"), dtype=dtype) for _ in range(2)]
    slot_mapping = []
    for span, (query_len, context_len) in enumerate(shape):
        blocks = [ids.pop() for _ in range(needed[span])]
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(context_len)]
        first_key = first_seen(context_len - query_len, window, is_chunked)
        tables[span, : len(blocks)] = torch.tensor(blocks)
        tables[span, : first_key // block_size] = -GARBAGE
        for cache in caches:
            rows = torch.randn(context_len - first_key, num_kv_heads, head_size, generator=generator).to(dtype)
            cache.view(-1, num_kv_heads, head_size)[slots[first_key:]] = rows
        slot_mapping += slots[-query_len:]
    query_lens, context_lens = (list(lens) for lens in zip(*shape, strict=True))
    layout = AttentionLayout(
        query_lens, context_lens, tables, torch.tensor(slot_mapping), block_size, window, is_chunked
    )
    q = torch.randn(layout.num_tokens, num_q_heads, head_size, generator=generator).to(dtype)
    return layout, q, caches


def on_device(caches, instead_of_nan=None):
    sides = [side.to(DEVICE) for side in caches]
    return LayerCache(*(sides if instead_of_nan is None else [side.nan_to_num(instead_of_nan) for side in sides]))


def prepare_attention(layout):
    return DeviceLayout.of(layout, DEVICE, torch.int32, MAX_NUM_KV_HEADS)


def expected_of(layout, q, caches, scale=0.25):
    return REFERENCE_OPS.attention(q, LayerCache(*caches), layout, CausalScores(scale))


def assert_like_reference(layout, q, caches):
    expected = expected_of(layout, q, caches)
    prepared = prepare_attention(layout)
    actual = attention(q.to(DEVICE), on_device(caches), prepared, CausalScores(0.25))
    assert not prepared.semaphores.any(), "they are as they were found"
    torch.testing.assert_close(actual.cpu(), expected, atol=TOLERANCE[q.dtype], rtol=TOLERANCE[q.dtype])


SHAPES = {
    "one decode": [(1, 1)],
    "ragged decodes": [(1, n) for n in (1, 2, 16, 17, 33, 100, 15, 64)],
    "fresh": [(n, n) for n in (2, 37, 16, 5)],
    "chunks": [(7, 40), (2, 3), (16, 48), (3, 70)],
    "everything": [(1, 5), (20, 20), (1, 80), (6, 30), (1, 6), (33, 33), (2, 90), (1, 1)],
}


@pytest.mark.parametrize("window", [None, 1, 5, 24], ids=lambda w: f"window {w}")
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_shapes(shape, window):
    assert_like_reference(*make_step(shape, window=window))


@pytest.mark.parametrize("chunk", [1, 5, 24, 64])
@pytest.mark.parametrize("shape", [SHAPES["ragged decodes"], SHAPES["everything"]], ids=["decodes", "everything"])
def test_chunks(shape, chunk):
    assert_like_reference(*make_step(shape, window=chunk, is_chunked=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (20, 1)], ids=str)
def test_groups_of_heads(heads, dtype):
    """As many rows as the matrix unit wants, fewer, not a power of two, and more."""
    assert_like_reference(*make_step([(1, 50), (9, 21), (1, 3), (40, 45)], heads, dtype=dtype))


@pytest.mark.parametrize("head_size", [8, 40, 64, 128])
def test_head_sizes(head_size):
    assert_like_reference(*make_step([(1, 40), (9, 21)], head_size=head_size))


@pytest.mark.parametrize("block_size", [1, 8, 64])
def test_block_sizes(block_size):
    assert_like_reference(*make_step([(1, 70), (9, 21), (30, 95)], block_size=block_size, window=40))


@pytest.mark.parametrize("tile", [DecodeTile(16, 4, 2, 16), DecodeTile(32, 4, 3, 64)], ids=str)
def test_splits_agree_with_the_reference(tile):
    """One sequence is cut into as many parts as its context has turns; each number of parts occurs."""
    shape = [(1, n) for n in (1, 16, 17, 32, 40, 150, 300)]
    layout, q, caches = make_step(shape)
    prepared = prepare_attention(layout)
    out = torch.empty_like(q, device=DEVICE)
    launch_decode(out, q.to(DEVICE), on_device(caches), prepared, CausalScores(0.25), tile)
    torch.testing.assert_close(out.cpu(), expected_of(layout, q, caches), atol=5e-6, rtol=5e-6)


def test_number_of_splits():
    tile = DecodeTile(64, 4, 3, min_split_keys=256)
    assert num_splits(1, 8, 256, tile) == 1
    assert num_splits(1, 1, 10**6, tile) <= 32
    for num_seqs, graph_size in [(3, 4), (5, 8), (9, 16), (17, 24), (25, 32), (33, 40), (130, 136)]:
        assert num_splits(num_seqs, 8, 4096, tile) == num_splits(graph_size, 8, 4096, tile)
    assert num_splits(10**4, 8, 4096, tile) == 1


def test_rows_that_fill_up_a_graph_give_zeros():
    """Static tensors, as a graph has them: bounds far above the lengths, tables of garbage, contexts of 0."""
    layout, q, caches = make_step([(1, 30), (1, 5)])
    expected = expected_of(layout, q, caches)
    tables = torch.full((4, 50), GARBAGE, dtype=torch.int32)
    tables[:2, : layout.block_tables.shape[1]] = layout.block_tables
    prepared = DeviceLayout(
        query_starts=torch.arange(5, dtype=torch.int32, device=DEVICE),
        context_lens=torch.tensor([30, 5, 0, 0], dtype=torch.int32, device=DEVICE),
        block_tables=tables.to(DEVICE),
        slot_mapping=torch.tensor([*layout.slot_mapping.tolist(), -1, -1], device=DEVICE),
        semaphores=new_semaphores(7, MAX_NUM_KV_HEADS, DEVICE),
        block_size=16,
        max_query_len=1,
        max_context_len=800,
    )
    q = torch.cat((q, torch.full((2, 4, 16), 3.0))).to(DEVICE)
    for version in (attention, gathered_attention):
        actual = version(q, on_device(caches, 7.0), prepared, CausalScores(0.25)).cpu()
        torch.testing.assert_close(actual[:2], expected, atol=5e-6, rtol=5e-6)
        assert not actual[2:].any()
    assert not prepared.semaphores.any()


def test_a_batch_gives_the_same_bits_when_it_is_filled_up():
    layout, q, caches = make_step([(1, 300), (1, 5), (1, 90)])
    cache = on_device(caches)
    exact = prepare_attention(layout)
    filled = DeviceLayout(
        query_starts=torch.arange(5, dtype=torch.int32, device=DEVICE),
        context_lens=torch.cat((exact.context_lens, exact.context_lens.new_zeros(1))),
        block_tables=torch.cat((exact.block_tables, torch.full_like(exact.block_tables[:1], GARBAGE))),
        slot_mapping=torch.cat((exact.slot_mapping, torch.full_like(exact.slot_mapping[:1], -1))),
        semaphores=new_semaphores(4, MAX_NUM_KV_HEADS, DEVICE),
        block_size=16,
        max_query_len=1,
        max_context_len=10**5,
    )
    expected = attention(q.to(DEVICE), cache, exact, CausalScores(0.25))
    actual = attention(torch.cat((q, q[:1])).to(DEVICE), cache, filled, CausalScores(0.25))
    assert torch.equal(actual[:3], expected)


@pytest.mark.parametrize("with_scales", [False, True])
@pytest.mark.parametrize("shape", [[(1, 40), (1, 7)], [(9, 21), (30, 50)]], ids=["decode", "prefill"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_float8_cache(shape, with_scales, dtype):
    layout, q, caches = make_step(shape, dtype=dtype)
    cached = [cache.to(torch.float8_e4m3fn) for cache in caches]
    scales = [torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.25])] if with_scales else []
    expected = REFERENCE_OPS.attention(q, LayerCache(*cached, *scales), layout, CausalScores(0.25))
    given = LayerCache(*on_device(cached).tensors, *(scale.to(DEVICE) for scale in scales))
    for version in (attention, gathered_attention):
        actual = version(q.to(DEVICE), given, prepare_attention(layout), CausalScores(0.25))
        torch.testing.assert_close(actual.cpu(), expected, atol=2 * TOLERANCE[dtype], rtol=2 * TOLERANCE[dtype])


SPLIT_SHAPES = {
    "short on long": [(3, 300)],
    "a tile and a bit": [(19, 260)],
    "beside decodes": [(1, 40), (5, 200), (1, 1), (1, 130)],
    "two, of unlike lengths": [(2, 33), (4, 250)],
    "nothing cached": [(30, 30)],
}


@pytest.mark.half
@pytest.mark.parametrize(("window", "is_chunked"), [(None, False), (7, False), (100, False), (7, True), (100, True)])
@pytest.mark.parametrize("name", SPLIT_SHAPES)
def test_prefill_split_along_the_context(name, window, is_chunked, monkeypatch):
    """A device of some multiprocessors, so that each tile's keys are shared, and one of very many."""
    shape, heads = SPLIT_SHAPES[name], (6, 2) if window else (4, 2)
    layout, q, caches = make_step(shape, heads=heads, window=window, is_chunked=is_chunked)
    expected = expected_of(layout, q, caches)
    given = q.to(DEVICE), on_device(caches)
    tile = PrefillTile(16, 16, 4, 1, min_split_keys=16)
    for num_multiprocessors in (8, 1000):
        monkeypatch.setattr(prefill_attention, "num_multiprocessors", lambda num=num_multiprocessors: num)
        semaphores = new_semaphores(40, MAX_NUM_KV_HEADS, DEVICE)
        prepared = dataclasses.replace(prepare_attention(layout), semaphores=semaphores)
        out = torch.where(torch.tensor(decodes_of(shape), device=DEVICE)[:, None, None], expected.to(DEVICE), math.nan)
        launch_prefill(out, *given, prepared, CausalScores(0.25), tile)
        torch.testing.assert_close(out.cpu(), expected, atol=5e-6, rtol=5e-6)
        assert not prepared.semaphores.any()
    assert num_prefill_splits(prepared, *heads, 16, tile) == MAX_SPLITS


def decodes_of(shape):
    """For each row whether its span is a decode."""
    return [query_len == 1 for query_len, _ in shape for _ in range(query_len)]


def test_number_of_prefill_splits(monkeypatch):
    monkeypatch.setattr(prefill_attention, "num_multiprocessors", lambda: 132)
    tile = PrefillTile(128, 128, 8, 3)

    def splits(query_lens, context_len):
        layout, *_ = make_step([(query_len, query_len) for query_len in query_lens])
        prepared = dataclasses.replace(prepare_attention(layout), max_context_len=context_len)
        return num_prefill_splits(prepared, 32, 8, 128, tile)

    assert splits([16], 30_000) == 16 and splits([16], 512) == 1
    assert splits([16, 1, 1, 1], 30_000) == 16, "decodes are another kernel's"
    assert splits([40], 30_000) == 8 and splits([512], 8704) == 1


def test_other_tiles():
    layout, q, caches = make_step([(9, 21), (70, 100), (2, 2)], window=30)
    out = torch.empty_like(q, device=DEVICE)
    tile = PrefillTile(32, 32, 4, 2)
    launch_prefill(out, q.to(DEVICE), on_device(caches), prepare_attention(layout), CausalScores(0.25), tile)
    torch.testing.assert_close(out.cpu(), expected_of(layout, q, caches), atol=5e-6, rtol=5e-6)


@pytest.mark.parametrize("shape", [SHAPES["ragged decodes"], SHAPES["everything"]], ids=["decodes", "everything"])
def test_gathered_attention(shape):
    layout, q, caches = make_step(shape, window=24)
    prepared = prepare_attention(layout)
    actual = gathered_attention(q.to(DEVICE), on_device(caches), prepared, CausalScores(0.25))
    torch.testing.assert_close(actual.cpu(), expected_of(layout, q, caches), atol=5e-6, rtol=5e-6)


def test_int8_cache_is_refused():
    layout, q, _ = make_step([(1, 5)])
    cache = LayerCache(*torch.zeros(2, 4, 16, 2, 18, dtype=torch.int8, device=DEVICE))
    with pytest.raises(UnsupportedError, match="kv_cache_dtype"):
        attention(q.to(DEVICE), cache, prepare_attention(layout), CausalScores(0.25))


EXTRAS = {
    "cap": (0.8, None),
    "sinks": (None, torch.tensor([0.3, -200.0, 1.5, 200.0])),  # one that outweighs all keys, and one that nothing does
    "both": (0.8, torch.tensor([0.3, -2.0, 1.5, 4.0])),
}


@pytest.mark.half
@pytest.mark.parametrize("window", [None, 7], ids=lambda w: f"window {w}")
@pytest.mark.parametrize("name", EXTRAS)
def test_soft_cap_and_sinks(name, window, monkeypatch):
    """Whole, with split keys, and in the launch for decodes and prompts alike."""
    cap, sinks = EXTRAS[name]
    layout, q, caches = make_step([(1, 5), (20, 20), (1, 300), (3, 250), (1, 1)], window=window)
    expected = REFERENCE_OPS.attention(q, LayerCache(*caches), layout, CausalScores(0.25, cap, sinks))
    given = q.to(DEVICE), on_device(caches)
    scores = CausalScores(0.25, cap, None if sinks is None else sinks.to(DEVICE))
    for num_multiprocessors in (4, 1000):
        for module in (prefill_attention, decode_attention):
            monkeypatch.setattr(module, "num_multiprocessors", lambda num=num_multiprocessors: num)
        for version in (attention, invariant_attention, gathered_attention):
            actual = version(*given, prepare_attention(layout), scores)
            torch.testing.assert_close(actual.cpu(), expected, atol=5e-6, rtol=5e-6)


def test_sinks_of_rows_that_fill_up_a_graph_give_zeros():
    layout, q, caches = make_step([(1, 30)])
    prepared = dataclasses.replace(prepare_attention(layout), context_lens=torch.zeros(1, dtype=torch.int32).to(DEVICE))
    scores = CausalScores(0.25, sinks=EXTRAS["both"][1].to(DEVICE))
    for version in (attention, invariant_attention):
        found = version(q.to(DEVICE), on_device(caches, 7.0), prepared, scores)
        assert not found.any()


def test_torch_serves_what_the_kernels_lack():
    assert with_features(TRITON_OPS, frozenset({"soft_cap", "sinks"})) is TRITON_OPS
    assert with_features(TRITON_OPS, frozenset({"latents"})).attention is gathered_attention
