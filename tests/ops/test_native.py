"""The native ops against the golden ones, in every instruction set this machine has.

Bounds: float32 differs from the reference by the order of summation only: a few 1e-6 of the result's scale. Bfloat16
results are rounded once from float32, so they differ by at most one step of 2**-8 where the sums fall on two sides of a
rounding border; attention with AMX also rounds the softmax weights (2**-9 each).
"""

import dataclasses
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from lullm.ops import reference
from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu import native, native_attention, native_draw
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.draw_table import DrawTable
from lullm.sampling.sampler import draw_tokens_
from lullm.types.draw import Draw, DrawParams

from .test_attention import STEPS, make_step, prepare

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.fixture(autouse=True, params=[1, 3], ids=["1 thread", "3 threads"])
def num_threads(request):
    native.set_num_threads(request.param)
    return request.param


def normal(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual, expected, float32=2e-6, bfloat16=2**-8):
    """Within a part of the larger of the value and 1 (or, for float32, of the result's scale)."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    bound = {torch.float32: float32, torch.bfloat16: bfloat16}[expected.dtype]
    torch.testing.assert_close(actual, expected, atol=bound, rtol=bound)


# in, out: whole panels, a rest of rows, rows that cannot be packed, fewer rows than a panel, one row
SHAPES = [(64, 64), (1024, 96), (96, 100), (32, 33), (544, 64), (65, 33), (31, 7), (64, 31), (2, 1)]


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_is_undone_and_keeps_to_its_bytes(dtype, shape):
    depth, num_outputs = shape
    memory = normal(num_outputs + 2, depth, dtype=dtype)
    before, weight = memory.clone(), memory[1:-1]
    native.pack_weight_(weight)
    is_packed = depth % (16 if dtype == torch.float32 else 32) == 0 and num_outputs >= 32
    assert torch.equal(weight, before[1:-1]) != is_packed
    assert torch.equal(memory[0], before[0]) and torch.equal(memory[-1], before[-1])
    native.unpack_weight_(weight)
    assert torch.equal(memory, before)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 16, 17, 32, 33, 47, 64, 255, 300])
def test_linear(dtype, shape, num_rows):
    depth, num_outputs = shape
    x, weight = normal(num_rows, depth, dtype=dtype), normal(num_outputs, depth, dtype=dtype, seed=1) / depth**0.5
    bias = normal(num_outputs, dtype=dtype, seed=2)
    packed = weight.clone()
    native.pack_weight_(packed)
    for given in (None, bias):
        # The bound on bfloat16 is one rounding of a result of up to about 4, whose steps are 2**-6.
        assert_close(native.linear(x, packed, given), reference.linear(x, weight, given), 4e-6, 2**-6)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("depth", [1056, 2112])
@pytest.mark.parametrize("num_rows", [40, 545])
def test_linear_of_deep_matrices(dtype, depth, num_rows):
    """The depth is done in chunks, with rests, and the rows in more than one block."""
    x, weight = normal(num_rows, depth, dtype=dtype), normal(416, depth, dtype=dtype, seed=1) / depth**0.5
    packed, gate_up = weight.clone(), weight[:384].clone()
    native.pack_weight_(packed)
    native.pack_weight_(gate_up)
    assert_close(native.linear(x, packed, None), reference.linear(x, weight, None), 2e-5, 2**-6)
    gold = reference.gated_linear(x, weight[:384], None, "silu")
    assert_close(native.gated_linear(x, gate_up, None, "silu"), gold, 2e-5, 2**-6)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("shape", [(64, 64), (96, 100), (544, 64), (65, 33)], ids=str)
@pytest.mark.parametrize("num_rows", [0, 1, 8, 33, 100])
def test_logits(dtype, shape, num_rows):
    depth, vocab_size = shape
    x, weight = normal(num_rows, depth, dtype=dtype), normal(vocab_size, depth, dtype=dtype, seed=1) / depth**0.5
    gold = reference.logits(x, weight)
    native.pack_weight_(weight)
    assert_close(native.logits(x, weight), gold, 1e-5)  # nothing is rounded but the weights and rows themselves


def test_linear_reads_rows_at_a_stride_and_nothing_beside_them(isa):
    weight = normal(64, 64, dtype=torch.bfloat16)
    native.pack_weight_(weight)
    wide = torch.full((20, 192), float("nan"), dtype=torch.bfloat16)
    wide[:, 64:128] = normal(20, 64, dtype=torch.bfloat16, seed=1)
    part = wide[:, 64:128]
    for rows in (1, 5, 20):
        assert torch.equal(native.linear(part[:rows], weight, None), native.linear(part[:rows].clone(), weight, None))


@DTYPES
def test_equal_rows_give_equal_results(dtype):
    """Whatever tile or vector of a batch a row falls into; see `test_batch_invariance` for different rows."""
    row, weight = normal(1, 256, dtype=dtype), normal(100, 256, dtype=dtype, seed=1)
    native.pack_weight_(weight)
    for count in (2, 8, 32, 48, 288):  # sizes that all rows are treated alike in
        results = native.linear(row.expand(count, -1).contiguous(), weight, None)
        assert torch.equal(results, results[:1].expand(count, -1))


def test_no_rows():
    weight = normal(64, 64, dtype=torch.float32)
    assert native.linear(torch.empty(0, 64), weight, None).shape == (0, 64)
    assert native.rms_norm(torch.empty(0, 64), weight[0], 1e-6).shape == (0, 64)
    assert native.gated_linear(torch.empty(0, 64), weight, None, "silu").shape == (0, 32)
    assert native.embedding(torch.empty(0, dtype=torch.int64), weight).shape == (0, 64)


@DTYPES
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_embedding(dtype, shape):
    depth, vocab_size = shape
    weight = normal(vocab_size, depth, dtype=dtype)
    packed = weight.clone()
    native.pack_weight_(packed)
    token_ids = torch.randint(0, vocab_size, (50,), generator=torch.Generator().manual_seed(0))
    assert torch.equal(native.embedding(token_ids, packed), weight[token_ids])


@pytest.mark.parametrize("token_id", [-1, 64])
def test_embedding_of_an_id_that_is_none(token_id):
    with pytest.raises(IndexError, match="vocabulary of 64"):
        native.embedding(torch.tensor([0, token_id]), torch.zeros(64, 32))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1024), (33, 80), (5, 7, 128), (3, 4, 5), (2, 1), (64,)], ids=str)
def test_rms_norm(dtype, shape):
    x, weight = normal(*shape, dtype=dtype) * 3, normal(shape[-1], dtype=dtype, seed=1)
    before = x.clone()
    assert_close(native.rms_norm(x, weight, 1e-6), reference.rms_norm(x, weight, 1e-6))
    assert torch.equal(x, before)


@DTYPES
def test_rms_norm_of_heads_in_the_fused_projection(dtype):
    qkv, weight = normal(9, 12, 64, dtype=dtype), normal(64, dtype=dtype, seed=1)
    for part in (qkv[:, :6], qkv[:, 6:9], qkv[:, :, :32], qkv[::2, 3:4], qkv[:1, 2:5]):
        size = part.shape[-1]
        assert_close(native.rms_norm(part, weight[:size], 1e-5), reference.rms_norm(part, weight[:size], 1e-5))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1024), (9, 64), (300, 80), (3, 7)], ids=str)
def test_add_rms_norm(dtype, shape):
    x, residual = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    weight = normal(shape[-1], dtype=dtype, seed=2)
    normed, total = reference.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    actual_normed, actual_total = native.add_rms_norm(x, residual, weight, 1e-6)
    assert torch.equal(actual_total, total)
    assert_close(actual_normed, normed)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("head_size", [2, 16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("num_rows", [1, 40])
@pytest.mark.parametrize("with_norms", [False, True])
def test_rope_and_cache(dtype, head_size, num_rows, with_norms):
    # Columns to the right belong to somebody else.
    qkv = normal(num_rows, 10, head_size, dtype=dtype)[:, :8]
    head_norm = HeadNorm(*(normal(head_size, dtype=dtype, seed=s) for s in (2, 3)), 1e-6) if with_norms else None
    angles = torch.outer(torch.arange(500.0), 1 / 100 ** torch.linspace(0, 1, head_size // 2))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 500, (num_rows,), generator=torch.Generator().manual_seed(1))
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:num_rows]
    slots[2:4] = -1
    actual = [torch.full((4, 16, 2, head_size), 7.0, dtype=dtype) for _ in range(2)]
    expected = [cache.clone() for cache in actual]
    before = qkv.clone()
    gold = reference.rope_and_cache(qkv, head_norm, positions, cache, LayerCache(*expected), slots)
    q = native_attention.rope_and_cache(qkv, head_norm, positions, cache, LayerCache(*actual), slots)
    # Norm and rotation round in turn: where they fall on two sides of a border, two steps of values up to 8.
    bounds = {"float32": 4e-6, "bfloat16": 2**-6 if with_norms else 2**-8}
    assert_close(q, gold, **bounds)
    assert_close(actual[0], expected[0], **bounds)
    assert torch.equal(actual[1], expected[1])
    assert torch.equal(qkv, before)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("shape", [(64, 64), (1024, 128), (96, 192), (64, 128 + 6), (33, 64), (64, 2)], ids=str)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 17, 33, 100])
def test_gated_linear(dtype, shape, num_rows):
    """Whole panels of gates and ups; others, which are two steps and round in between."""
    depth, num_outputs = shape
    x, weight = normal(num_rows, depth, dtype=dtype), normal(num_outputs, depth, dtype=dtype, seed=1) / depth**0.5
    x[0] *= 30  # gates of some hundreds, of both signs
    bias = normal(num_outputs, dtype=dtype, seed=2)
    packed = weight.clone()
    native.pack_weight_(packed)
    for given in (None, bias):
        gold = reference.gated_linear(x, weight, given, "silu")
        scale = gold.float().abs().amax(dim=1, keepdim=True).clamp(min=1)
        actual = native.gated_linear(x, packed, given, "silu")
        assert actual.dtype == gold.dtype
        assert ((actual.float() - gold.float()) / scale).abs().max() <= (1e-5 if dtype == torch.float32 else 2**-6)


@pytest.mark.parametrize("pairs", [[], [(0, 1)], [(0, 1), (1, 2)], [(0, 1), (2, 0)], [(3, 3), (0, 4), (4, 5)]], ids=str)
def test_copy_blocks(pairs):
    actual = [LayerCache(*normal(2, 6, 4, 2, 8, dtype=torch.bfloat16, seed=seed)) for seed in (1, 2)]
    expected = [LayerCache(cache.key.clone(), cache.value.clone()) for cache in actual]
    native_attention.copy_blocks(actual, pairs)
    reference.copy_blocks(expected, pairs)
    for cache, gold in zip(actual, expected, strict=True):
        assert torch.equal(cache.key, gold.key) and torch.equal(cache.value, gold.value)


def test_swap_blocks():
    sources = [LayerCache(*normal(2, 6, 4, 2, 8, dtype=torch.bfloat16, seed=seed)) for seed in (1, 2)]
    actual = [LayerCache(*torch.zeros(2, 9, 4, 2, 8).bfloat16()) for _ in sources]
    expected = [LayerCache(cache.key.clone(), cache.value.clone()) for cache in actual]
    pairs = [(0, 8), (5, 0), (5, 3)]
    native_attention.swap_blocks(sources, actual, pairs)
    reference.swap_blocks(sources, expected, pairs)
    for cache, gold in zip(actual, expected, strict=True):
        assert torch.equal(cache.key, gold.key) and torch.equal(cache.value, gold.value)


def draw_table(params, keys, vocab_size):
    return DrawTable.of([Draw(0, 0, p) for p in params], keys, vocab_size)


def random_keys(num, seed=0):
    return np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, num)


DRAWS = [
    {},
    {"temperature": 0.3},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 700, "temperature": 2.0},
    {"top_p": 0.1},
    {"top_p": 0.9},
    {"top_p": 0.999999, "temperature": 5.0},
    {"top_k": 50, "top_p": 0.8},
    {"min_p": 0.1},
    {"min_p": 0.3, "top_p": 0.95, "top_k": 100, "temperature": 1.5},
]


@pytest.mark.pairs
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0], ids=["flat", "broad", "peaked"])
@pytest.mark.parametrize("vocab_size", [1, 5, 512, 3001])
def test_draw_tokens(vocab_size, spread):
    """Against the sampler's own way: the same tokens, and the same logits that were drawn from."""
    params = [DrawParams(**options) for options in DRAWS]
    logits = normal(len(DRAWS), vocab_size, dtype=torch.float32) * spread
    logits[:, vocab_size // 2 :: 7] -= 1.0  # ties
    if vocab_size > 5:
        logits[:, 3] = -torch.inf
    keys = random_keys(len(DRAWS), vocab_size)
    draws = [Draw(0, 0, p) for p in params]
    expected_logits, actual_logits = logits.clone(), logits.clone()
    expected = draw_tokens_(expected_logits, draws, torch.from_numpy(keys))
    table = draw_table(params, keys, vocab_size)
    actual = native_draw.draw_tokens(logits, table)
    assert torch.equal(native_draw.draw_tokens(actual_logits, table, True), actual)
    # Where the threshold of a top_p falls between two tokens, the order of sums decides.
    kept = actual_logits.isfinite() == expected_logits.isfinite()
    random = [row for row, p in enumerate(params) if p.temperature > 0]
    assert (~kept[random]).sum() <= (0 if vocab_size < 3000 else 2)
    both = kept & actual_logits.isfinite()
    torch.testing.assert_close(actual_logits[random][both[random]], expected_logits[random][both[random]])
    is_summed = torch.tensor([p.top_p < 1.0 for p in params])
    assert torch.equal(actual[~is_summed], expected[~is_summed])
    assert (actual == expected).sum() >= len(params) - 1
    assert actual_logits.gather(1, actual.unsqueeze(1)).isfinite().all()


@pytest.mark.parametrize("vocab_size", [5, 600, 9001])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.3, 1.0])
def test_draw_allowed(vocab_size, share):
    """What `forbid_` and then `draw_tokens` give, also of few tokens and of broken rows; the logits stay."""
    params = [DrawParams(**options) for options in (*DRAWS, {"temperature": 0.0}, {"temperature": 0.0})]
    logits = normal(len(params) + 3, vocab_size, dtype=torch.float32)
    logits[:, vocab_size // 2 :: 3] = 2.0  # ties
    logits[-1, vocab_size // 2] = torch.nan
    logits[-2, vocab_size // 3] = torch.inf
    rows = torch.arange(len(params)).flip(0) + 3
    rng = np.random.default_rng(3)
    bits = rng.random((len(params), -(-vocab_size // 32) * 32)) < share
    bits[:, : vocab_size // 2 : 97] |= share > 0
    allowed = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little").view(np.int32))
    table = draw_table(params, random_keys(len(params), vocab_size), vocab_size)
    before = logits.clone()
    actual = native_draw.draw_allowed(logits, rows, allowed, table)
    assert torch.equal(logits.view(torch.int32), before.view(torch.int32))
    native_draw.forbid_(logits, rows, allowed)
    assert torch.equal(actual, native_draw.draw_tokens(logits[rows].contiguous(), table))


def test_draw_tokens_follows_the_probabilities():
    """20,000 draws: 4 standard deviations, of a row whose truncation keeps 4 of 700 tokens."""
    row = torch.full((700,), -9.0)
    row[[10, 600, 601, 650]] = torch.tensor([2.0, 1.0, 0.5, 0.5])
    table = draw_table([DrawParams(top_p=0.9)] * 20000, random_keys(20000), 700)
    found = native_draw.draw_tokens(row.repeat(20000, 1), table).bincount(minlength=700) / 20000
    expected = torch.zeros(700)
    expected[[10, 600, 601, 650]] = row[[10, 600, 601, 650]].softmax(0)
    assert (found[expected == 0] == 0).all()
    assert ((found - expected).abs() <= 4 * (expected * (1 - expected) / 20000).sqrt()).all()


def test_draw_tokens_of_broken_rows():
    logits = normal(6, 600, dtype=torch.float32)
    logits[0, 599] = torch.nan
    logits[1, 0] = torch.inf
    logits[2] = -torch.inf
    logits[3, :] = -torch.inf
    logits[3, 577] = -3.0
    logits[4, [20, 500]] = 9.0  # the first of equals
    for temperature in (0.0, 1.0):
        table = draw_table([DrawParams(temperature=temperature, top_p=0.001)] * 6, random_keys(6, 5), 600)
        tokens = native_draw.draw_tokens(logits, table).tolist()
        assert tokens[:4] == [-1, -1, -1, 577] and tokens[4] in ((20,) if temperature == 0.0 else (20, 500))


def assert_attention(layout, q, caches, scale):
    expected = reference.attention(q, LayerCache(*caches), layout, CausalScores(scale))
    prepared = prepare(native_attention, layout)
    assert prepared.slot_mapping is layout.slot_mapping
    assert_close(
        native_attention.attention(q, LayerCache(*caches), prepared, CausalScores(scale)), expected, 4e-6, 2**-6
    )


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("shape", STEPS.values(), ids=STEPS.keys())
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (8, 1), (10, 2)], ids=str)
def test_attention_of_steps(dtype, shape, heads):
    layout, q, caches = make_step(shape, *heads, head_size=32, block_size=16, dtype=dtype)
    for span, context_len in enumerate(layout.context_lens):
        layout.block_tables[span, -(-context_len // 16) :] = 10**9  # garbage past the context
    assert_attention(layout, q, caches, 32**-0.5)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("head_size", [16, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("block_size", [1, 8, 16, 32])
def test_attention_of_head_and_block_sizes(dtype, head_size, block_size):
    shape = [(1, 5), (20, 20), (1, 40), (6, 30), (1, 6), (33, 33), (2, 43), (1, 300), (70, 200), (1, 1)]
    layout, q, caches = make_step(shape, 4, 2, head_size, block_size, dtype)
    assert_attention(layout, q, caches, head_size**-0.5)


@DTYPES
@pytest.mark.parametrize("others", [[], [(1, 5)], [(1, 500), (1, 3)]], ids=str)
def test_attention_of_rows_that_see_nothing(dtype, others):
    """They give zeros. Once the processor was asked to divide their keys by no steps."""
    layout, q, caches = make_step([(1, 1), *others, (1, 1)], 4, 2, 32, 16, dtype)
    rows = [0, len(others) + 1]
    context_lens = [0 if row in rows else length for row, length in enumerate(layout.context_lens)]
    prepared = prepare(native_attention, dataclasses.replace(layout, context_lens=context_lens))
    found = native_attention.attention(q, LayerCache(*caches), prepared, CausalScores(32**-0.5))
    expected = reference.attention(q, LayerCache(*caches), layout, CausalScores(32**-0.5))
    expected[rows] = 0
    assert_close(found, expected, 4e-6, 2**-6)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 6, 7, 8, 16])
def test_attention_of_grouped_heads(dtype, group):
    shape = [(1, 70), (3, 90), (40, 50), (1, 1), (130, 260)]
    layout, q, caches = make_step(shape, 2 * group, 2, 48, 16, dtype)
    assert_attention(layout, q, caches, 48**-0.5)


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("window", [1, 15, 64, 100, 1000])
def test_attention_within_a_window(dtype, window):
    """What lies before the window may be anything, and so may the table's entries for it."""
    shape = [(1, 5), (20, 20), (1, 300), (6, 130), (200, 200), (1, 64), (150, 400), (1, 1)]
    layout, q, caches = make_step(shape, 4, 2, 32, 16, dtype)
    layout = dataclasses.replace(layout, window=window)
    for span, first_key in enumerate(layout.first_keys):
        layout.block_tables[span, : first_key // 16] = 10**9
    assert_attention(layout, q, caches, 32**-0.5)


@DTYPES
def test_attention_of_large_scores(dtype):
    """Scores of some hundreds, whose own rounding is 3e-5: the softmax must neither overflow nor lose its largest.

    For most rows that one is not among the keys that come first.
    """
    layout, q, caches = make_step([(200, 500), (1, 300), (3, 90), (40, 40)], 4, 2, 32, 16, dtype)
    assert_close(
        native_attention.attention(q * 30, LayerCache(*caches), prepare(native_attention, layout), CausalScores(1.0)),
        reference.attention(q * 30, LayerCache(*caches), layout, CausalScores(1.0)),
        float32=1e-3,
        bfloat16=2**-6,
    )


@DTYPES
def test_attention_of_more_rows_and_keys_than_are_done_at_a_time(dtype):
    layout, q, caches = make_step([(600, 2500), (1, 10)], 4, 2, 16, 16, dtype)
    assert_attention(layout, q, caches, 0.25)


@DTYPES
@pytest.mark.parametrize("num_outputs", [128, 96], ids=["whole panels", "two steps"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "relu2"])
def test_other_gates_than_silu(activation, num_outputs, dtype):
    for num_rows in (1, 5, 40):
        x, weight = normal(num_rows, 64, dtype=dtype), normal(num_outputs, 64, dtype=dtype, seed=1) / 8
        gold = reference.gated_linear(x, weight, None, activation)
        native.pack_weight_(weight)
        assert_close(native.gated_linear(x, weight, None, activation), gold, 2e-5, 2**-6)


@DTYPES
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
def test_activate(activation, dtype):
    x = torch.cat((torch.linspace(-12, 12, 997), torch.tensor([0.0, 1e-30, -1e30, 1e30]))).expand(3, -1).to(dtype)
    found = native.activate(x, activation)
    assert_close(found, reference.activate(x, activation), 2e-6, 2**-8)
    assert native.activate(torch.full((1, 20), torch.nan, dtype=dtype), activation).isnan().all()


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1024), (9, 70), (300, 80), (3, 7), (0, 16)], ids=str)
def test_layer_norm(dtype, shape):
    x, weight, bias = (normal(*s, dtype=dtype, seed=seed) for seed, s in enumerate((shape, shape[1:], shape[1:])))
    x = x * 3 + 5  # a mean that a sum of squares would not survive in 16 bits
    wide = torch.nn.functional.pad(x, (2, 3))[:, 2:-3]  # rows at a stride
    for given in (None, bias):
        gold = reference.layer_norm(x, weight, given, 1e-5)
        assert_close(native.layer_norm(x, weight, given, 1e-5), gold, 4e-6, 2**-7)
        assert_close(native.layer_norm(wide, weight, given, 1e-5), gold, 4e-6, 2**-7)


@DTYPES
def test_attention_of_a_head_size_for_torch(dtype):
    layout, q, caches = make_step([(1, 20), (30, 40)], 4, 2, 24, 16, dtype)
    assert_attention(layout, q, caches, 0.2)


def test_an_empty_step():
    layout = AttentionLayout([], [], torch.zeros(0, 0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64), 16)
    cache = torch.zeros(2, 16, 2, 16)
    out = native_attention.attention(
        torch.zeros(0, 4, 16), LayerCache(cache, cache), prepare(native_attention, layout), CausalScores(1.0)
    )
    assert out.shape == (0, 4, 16)


def test_callers_at_the_same_time():
    """The pool serves one; the others work alone. Nobody waits, nobody mixes results."""
    x, weight = normal(40, 128, dtype=torch.float32), normal(320, 128, dtype=torch.float32, seed=1)
    expected = reference.linear(x, weight, None)
    native.pack_weight_(weight)
    faults = []

    def call():
        for _ in range(50):
            if not torch.allclose(native.linear(x, weight, None), expected, atol=1e-4):
                faults.append("differs")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_random_steps():
    rng = random.Random(3)
    for seed in range(6):
        shape = []
        for _ in range(rng.randint(1, 24)):
            query_len = rng.choice([1, 1, 1, 2, rng.randint(1, 60)])
            shape.append((query_len, query_len + rng.choice([0, rng.randint(0, 250)])))
        for dtype in (torch.float32, torch.bfloat16):
            layout, q, caches = make_step(shape, 4, 2, 32, 8, dtype, seed)
            assert_attention(layout, q, caches, 0.2)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True
    )


def test_the_instruction_set_is_forced_by_the_environment(isa):
    code = "from lullm.ops.cpu.library import load_library; print(load_library().isa)"
    found = run_python(code, LULLM_CPU_ISA=isa, PYTHONPATH=os.pathsep.join(sys.path))
    assert found.stdout.strip() == isa, found.stderr
    found = run_python(code, LULLM_CPU_ISA="mmx", PYTHONPATH=os.pathsep.join(sys.path))
    assert "ConfigError" in found.stderr and isa in found.stderr


def test_a_forked_child_has_a_pool_of_its_own():
    x, weight = normal(40, 128, dtype=torch.float32), normal(320, 128, dtype=torch.float32, seed=1)
    native.pack_weight_(weight)
    expected = native.linear(x, weight, None)
    child = os.fork()
    if child == 0:
        os._exit(0 if torch.equal(native.linear(x, weight, None), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_of_many_results_begin_at_cache_lines(isa):
    """And rows of the weight behind its last panel are multiplied as the others, for one row as for many."""
    x, weight = (
        torch.randn(70, 64, generator=torch.Generator().manual_seed(1)).bfloat16(),
        torch.zeros(1048, 64).bfloat16(),
    )
    weight.copy_(torch.randn(1048, 64, generator=torch.Generator().manual_seed(2)))
    expected = x.float() @ weight.float().t()
    native.pack_weight_(weight)
    y = native.linear(x, weight, None)
    assert y.shape == (70, 1048) and y.stride() == (1056, 1)
    torch.testing.assert_close(y.float(), expected, atol=0.1, rtol=0.01)
    for row in (0, 69):
        assert torch.equal(native.linear(x[row : row + 1], weight, None)[0], y[row])
