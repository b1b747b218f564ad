"""The fast attention against the golden one, over shapes, with a cache full of NaN wherever nothing was written."""

import itertools
import random

import pytest
import torch

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache import float8_cache
from lullm.ops.cache.int8_cache import quantize
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.grouped_attention import group_spans
from lullm.ops.selection import REFERENCE_OPS, TORCH_CPU_OPS
from lullm.types.layer_kind import first_seen

STEPS = {
    "one decode": [(1, 1)],
    "one long decode": [(1, 300)],
    "equal decodes": [(1, 33)] * 5,
    "ragged decodes": [(1, length) for length in (1, 2, 17, 250, 251, 16, 32, 700, 700, 3)],
    "one fresh": [(37, 37)],
    "ragged fresh": [(n, n) for n in (2, 3, 40, 41, 90, 5)],
    "one chunk": [(5, 64)],
    "ragged chunks": [(7, 40), (2, 3), (16, 48), (3, 200), (4, 200), (9, 41)],
    "long chunk in tiles": [(600, 700)],
    "tiles that end even": [(512, 513)],
    "everything": [(1, 5), (20, 20), (1, 80), (6, 30), (1, 6), (1, 5), (33, 33), (2, 90), (300, 310), (1, 1)],
}


def prepare(ops, layout):
    """What `ops.attention` wants."""
    return ops.prepare_attention(DeviceLayout.of(layout))


def make_step(shape, num_q_heads, num_kv_heads, head_size, block_size, dtype, seed=0, window=None, is_chunked=False):
    """A layout with scattered blocks, its queries, and caches that hold NaN but for the context's slots.

    With a window there is no block at all where nothing is seen any more.
    """
    generator = torch.Generator().manual_seed(seed)
    needed = [-(-context_len // block_size) for _, context_len in shape]
    ids = list(range(sum(needed) + 3))
    random.Random(seed).shuffle(ids)
    block_tables = torch.zeros(len(shape), max(needed) + 2, dtype=torch.int64)
    caches = [torch.full((len(ids), block_size, num_kv_heads, head_size), float("nan"), dtype=dtype) for _ in range(2)]
    slot_mapping = []
    for span, (query_len, context_len) in enumerate(shape):
        blocks = [ids.pop() for _ in range(needed[span])]
        block_tables[span, : len(blocks)] = torch.tensor(blocks)
        first_key = first_seen(context_len - query_len, window, is_chunked)
        block_tables[span, : first_key // block_size] = -(10**9)
        slots = [blocks[p // block_size] * block_size + p % block_size for p in range(context_len)]
        for cache in caches:
            rows = torch.randn(context_len, num_kv_heads, head_size, generator=generator).to(dtype)
            cache.view(-1, num_kv_heads, head_size)[slots] = rows
        slot_mapping += slots[-query_len:]
    layout = AttentionLayout(
        query_lens=[query_len for query_len, _ in shape],
        context_lens=[context_len for _, context_len in shape],
        block_tables=block_tables,
        slot_mapping=torch.tensor(slot_mapping),
        block_size=block_size,
        window=window,
        is_chunked=is_chunked,
    )
    q = torch.randn(layout.num_tokens, num_q_heads, head_size, generator=generator).to(dtype)
    return layout, q, caches


def assert_like_reference(layout, q, caches, scale, **tolerance):
    expected = REFERENCE_OPS.attention(q, LayerCache(*caches), prepare(REFERENCE_OPS, layout), CausalScores(scale))
    prepared = prepare(TORCH_CPU_OPS, layout)
    assert prepared.slot_mapping is layout.slot_mapping
    for _ in range(2):  # a second layer, with the buffers of the first
        actual = TORCH_CPU_OPS.attention(q, LayerCache(*caches), prepared, CausalScores(scale))
        assert actual.dtype == q.dtype and actual.is_contiguous()
        torch.testing.assert_close(actual, expected, **tolerance)


@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (8, 1)], ids=str)
def test_shapes(shape, heads):
    layout, q, caches = make_step(shape, *heads, head_size=16, block_size=16, dtype=torch.float32)
    assert_like_reference(layout, q, caches, 0.25, atol=2e-6, rtol=1e-5)


@pytest.mark.pairs
@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("window", [1, 3, 16, 32, 200, 1000])
@pytest.mark.parametrize("is_chunked", [False, True], ids=["sliding", "chunks"])
def test_windows(shape, window, is_chunked):
    layout, q, caches = make_step(shape, 4, 2, 16, 16, torch.float32, window=window, is_chunked=is_chunked)
    assert_like_reference(layout, q, caches, 0.25, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("is_chunked", [False, True], ids=["sliding", "chunks"])
def test_a_window_against_the_formula(is_chunked):
    """The golden version itself: the row at p sees p - window + 1 .. p, as in transformers' sliding mask.

    In chunks it sees the positions q up to p for which q // window == p // window.
    """
    layout, q, caches = make_step([(9, 40)], 2, 2, 16, 8, torch.float32, window=7, is_chunked=is_chunked)
    # The row at 31 sees 25..31; in chunks only 28..31, and its block is there from 24 on.
    slots = [int(layout.block_tables[0, p // 8]) * 8 + p % 8 for p in range(25, 40)]
    keys, values = (cache.view(-1, 2, 16)[slots].transpose(0, 1) for cache in caches)
    rows, columns = torch.arange(31, 40)[:, None], torch.arange(25, 40)
    seen = (columns <= rows) & (columns // 7 == rows // 7 if is_chunked else columns > rows - 7)
    expected = torch.nn.functional.scaled_dot_product_attention(q.transpose(0, 1), keys, values, attn_mask=seen)
    actual = REFERENCE_OPS.attention(q, LayerCache(*caches), prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    torch.testing.assert_close(actual, expected.transpose(0, 1), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("with_sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_soft_cap_and_sinks_against_the_formula(soft_cap, with_sinks, window):
    """Of one sequence, spelled out in float64: a sink is a score more in the sum, with nothing to add to the result."""
    layout, q, caches = make_step([(9, 40)], 4, 2, 16, 8, torch.float32, window=window)
    sinks = torch.tensor([0.3, -2.0, 1.5, 4.0]) if with_sinks else None
    slots = [int(layout.block_tables[0, p // 8]) * 8 + p % 8 for p in range(40)]
    seen_slots = slots if window is None else slots[25:]
    keys, values = (cache.view(-1, 2, 16)[seen_slots].double().repeat_interleave(2, 1) for cache in caches)
    scores = torch.einsum("qhd,lhd->hql", q.double(), keys) * 0.25
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    rows, columns = torch.arange(31, 40)[:, None], torch.arange(40 - len(seen_slots), 40)
    hidden = columns > rows if window is None else (columns > rows) | (columns <= rows - window)
    weights = scores.masked_fill(hidden, -torch.inf).exp()
    total = weights.sum(-1) + (0 if sinks is None else sinks.double().exp()[:, None])
    expected = torch.einsum("hql,lhd->qhd", weights / total[..., None], values).float()
    for ops in (REFERENCE_OPS, TORCH_CPU_OPS):
        prepared = prepare(ops, layout)
        actual = ops.attention(q, LayerCache(*caches), prepared, CausalScores(0.25, soft_cap, sinks))
        torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("window", [None, 20])
def test_soft_cap_and_sinks_of_steps(shape, window):
    layout, q, caches = make_step(shape, 4, 2, 16, 16, torch.float32, window=window)
    cache, extras = LayerCache(*caches), (0.8, torch.tensor([0.3, -2.0, 1.5, 4.0]))
    expected = REFERENCE_OPS.attention(q, cache, prepare(REFERENCE_OPS, layout), CausalScores(0.25, *extras))
    plain = REFERENCE_OPS.attention(q, cache, prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    assert (expected - plain).abs().max() > 0.05
    actual = TORCH_CPU_OPS.attention(q, cache, prepare(TORCH_CPU_OPS, layout), CausalScores(0.25, *extras))
    torch.testing.assert_close(actual, expected, atol=2e-6, rtol=1e-5)


def quantized(caches):
    return [quantize(cache.nan_to_num(nan=99.0)) for cache in caches]


@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("window", [None, 20])
def test_int8_caches(shape, window):
    layout, q, caches = make_step(shape, 4, 2, 16, 16, torch.float32, window=window)
    int8_caches = quantized(caches)
    golden = REFERENCE_OPS.attention(q, LayerCache(*int8_caches), prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    prepared = prepare(TORCH_CPU_OPS, layout)
    for _ in range(2):
        actual = TORCH_CPU_OPS.attention(q, LayerCache(*int8_caches), prepared, CausalScores(0.25))
        torch.testing.assert_close(actual, golden, atol=2e-6, rtol=1e-5)
    exact = REFERENCE_OPS.attention(q, LayerCache(*caches), prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    error = (actual - exact).pow(2).mean().sqrt()
    assert 1e-4 < error < 0.01 * caches[1].nan_to_num().abs().max()


@pytest.mark.parametrize("scales", [(torch.tensor([0.5, 3.0]), torch.tensor([2.0, 0.25])), ()], ids=["scales", "none"])
@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
def test_float8_caches(shape, scales):
    layout, q, caches = make_step(shape, 4, 2, 16, 16, torch.float32)
    per_head = scales or (None, None)
    sides = [float8_cache.quantize(side, s) for side, s in zip(caches, per_head, strict=True)]  # NaN stays
    cache = LayerCache(*sides, *scales)
    golden = REFERENCE_OPS.attention(q, cache, prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    actual = TORCH_CPU_OPS.attention(q, cache, prepare(TORCH_CPU_OPS, layout), CausalScores(0.25))
    torch.testing.assert_close(actual, golden, atol=2e-6, rtol=1e-5)
    exact = REFERENCE_OPS.attention(q, LayerCache(*caches), prepare(REFERENCE_OPS, layout), CausalScores(0.25))
    error = (golden - exact).pow(2).mean().sqrt()
    assert 1e-4 < error < 0.04 * caches[1].nan_to_num().abs().max()


def test_bfloat16_queries_on_int8_caches():
    layout, q, caches = make_step(STEPS["everything"], 4, 2, 64, 16, torch.bfloat16)
    int8_caches = quantized(caches)
    golden = REFERENCE_OPS.attention(q, LayerCache(*int8_caches), prepare(REFERENCE_OPS, layout), CausalScores(0.125))
    actual = TORCH_CPU_OPS.attention(q, LayerCache(*int8_caches), prepare(TORCH_CPU_OPS, layout), CausalScores(0.125))
    assert actual.dtype == torch.bfloat16
    torch.testing.assert_close(actual, golden, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_head_and_block_sizes(head_size, block_size, dtype):
    shape = [(1, 5), (20, 20), (1, 40), (6, 30), (1, 6), (33, 33), (2, 43), (1, 1)]
    layout, q, caches = make_step(shape, 6, 2, head_size, block_size, dtype)
    tolerance = {"atol": 2e-6, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 2e-2, "rtol": 2e-2}
    assert_like_reference(layout, q, caches, head_size**-0.5, **tolerance)


@pytest.mark.parametrize("seed", range(20))
def test_random_steps(seed):
    rng = random.Random(seed)
    shape = []
    for _ in range(rng.randint(1, 24)):
        query_len = rng.choice([1, 1, 1, 2, rng.randint(1, 60)])
        shape.append((query_len, query_len + rng.choice([0, rng.randint(0, 150)])))
    layout, q, caches = make_step(shape, 4, 2, 16, 8, torch.float32, seed, rng.choice([None, rng.randint(1, 80)]))
    assert_like_reference(layout, q, caches, 0.25, atol=2e-6, rtol=1e-5)


def test_entries_past_the_context_are_not_read():
    layout, q, caches = make_step(STEPS["everything"], 4, 2, 16, 16, torch.float32)
    for span, context_len in enumerate(layout.context_lens):
        layout.block_tables[span, -(-context_len // 16) :] = 10**9
    assert_like_reference(layout, q, caches, 0.25, atol=2e-6, rtol=1e-5)


def test_an_empty_step():
    layout = AttentionLayout([], [], torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 16)
    cache = torch.zeros(2, 16, 2, 8)
    out = TORCH_CPU_OPS.attention(
        torch.zeros(0, 4, 8), LayerCache(cache, cache), prepare(TORCH_CPU_OPS, layout), CausalScores(1.0)
    )
    assert out.shape == (0, 4, 8)


def test_every_span_is_in_one_group_with_its_like():
    rng = random.Random(1)
    query_lens = [rng.choice([1, 1, 5, 100]) for _ in range(200)]
    context_lens = [n + rng.choice([0, 10, 500]) for n in query_lens]
    groups = group_spans(query_lens, context_lens)
    assert sorted(itertools.chain(*groups)) == list(range(200))
    assert len(groups) < 40
    for group in groups:
        kinds = {
            "decode" if query_lens[s] == 1 else "fresh" if query_lens[s] == context_lens[s] else "chunk" for s in group
        }
        assert len(kinds) == 1


def test_padding_is_bounded():
    """A long sequence does not make the short ones pay for its length."""
    context_lens = [20] * 30 + [4000]
    groups = group_spans([1] * 31, context_lens)
    assert groups == [list(range(30)), [30]]
    padded = sum(len(group) * max(context_lens[s] for s in group) for group in groups)
    assert padded == sum(context_lens)
