"""`batch_invariant` on a GPU: a row's bits are the same alone, in a batch, and whatever chunk it was computed in."""

import numpy as np
import pytest
import torch
import triton

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.selection import REFERENCE_OPS
from lullm.ops.triton import elementwise
from lullm.ops.triton.device import launch_device
from lullm.ops.triton.table import INVARIANT_OPS as OPS
from lullm.ops.triton.table import TRITON_OPS

DEVICE = launch_device()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
CONTEXT_LEN, BLOCK_SIZE = 75, 4
BATCHES = [(0, 1), (3, 2), (5, 16), (20, 17)]
ALONE = 0, 4, 15, 16, 31, 32, 40


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_invariant(compute, rows):
    """All rows, whose bits are those of each batch, and of some rows alone."""
    whole = compute(rows)
    for first, count in (*BATCHES, *((place, 1) for place in ALONE)):
        assert torch.equal(compute(rows[first : first + count]), whole[first : first + count]), (first, count)
    return whole.cpu()


@pytest.fixture(autouse=True)
def _rows_are_multiplied_apart(monkeypatch):
    """Through the interpreter, too: NumPy's products give a row other bits by its place (OpenBLAS on AMD's Zen 3)."""
    if triton.knobs.runtime.interpret:
        multiply = np.matmul
        monkeypatch.setattr(
            np, "matmul", lambda a, b, **kind: multiply(a[..., None, :], b[..., None, :, :], **kind)[..., 0, :]
        )


@DTYPES
@pytest.mark.parametrize("has_bias", [True, False])
def test_products(dtype, has_bias):
    x, weight = random(41, 100, dtype=dtype), random(70, 100, dtype=dtype, seed=1)
    bias = random(70, dtype=dtype, seed=2) if has_bias else None
    found = assert_invariant(lambda rows: OPS.linear(rows, weight, bias), x)
    expected = REFERENCE_OPS.linear(x.cpu(), weight.cpu(), None if bias is None else bias.cpu())
    torch.testing.assert_close(found, expected, atol=2e-2 if dtype == torch.float16 else 2e-5, rtol=2e-3)
    if not has_bias:
        logits = assert_invariant(lambda rows: OPS.logits(rows, weight), x)
        assert logits.dtype == torch.float32
    assert_invariant(lambda rows: OPS.gated_linear(rows, weight, bias, "silu"), x)


def test_products_of_rows_that_stand_apart_and_of_none():
    x, weight = random(6, 100), random(33, 64, seed=1)
    assert torch.equal(OPS.linear(x[:, 8:72], weight, None), OPS.linear(x[:, 8:72].contiguous(), weight, None))
    assert OPS.linear(x[:0, :64], weight, None).shape == (0, 33)


@DTYPES
def test_norms_and_gates(dtype):
    x, weight = random(41, 96, dtype=dtype), random(96, dtype=dtype, seed=1)
    assert_invariant(lambda rows: OPS.rms_norm(rows, weight, 1e-6), x)
    assert_invariant(lambda rows: OPS.add_rms_norm(rows.clone(), rows * 0.5, weight, 1e-6)[0], x)
    assert_invariant(elementwise.silu_mul, x)


def attend(ops, q, caches, query_lens, context_lens, tables, window):
    """Rows of several spans, all in one call."""
    slots = torch.zeros(sum(query_lens), dtype=torch.int64)
    layout = AttentionLayout(query_lens, context_lens, torch.tensor(tables), slots, BLOCK_SIZE, window)
    placed = DeviceLayout.of(layout, DEVICE, ops.index_dtype, ops.semaphores_per_span)
    return ops.attention(q, caches, ops.prepare_attention(placed), CausalScores(0.25))


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("heads", [(4, 2), (6, 1)], ids=str)
def test_attention(dtype, window, heads):
    """Two sequences of 75 tokens, in whole, token by token and in chunks beside each other."""
    num_blocks = 2 * (CONTEXT_LEN // BLOCK_SIZE + 1)
    caches = LayerCache(*random(2, num_blocks, BLOCK_SIZE, heads[1], 16, dtype=dtype))
    order = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).view(2, -1).tolist()
    queries = random(2, CONTEXT_LEN, heads[0], 16, dtype=dtype, seed=2)

    def compute(parts):
        """`parts`: (sequence, first row, last row) of each span."""
        q = torch.cat([queries[seq, first:last] for seq, first, last in parts])
        lens = [last - first for _, first, last in parts]
        tables = [order[seq] for seq, _, _ in parts]
        return attend(OPS, q, caches, lens, [last for *_, last in parts], tables, window)

    whole = torch.stack([compute([(seq, 0, CONTEXT_LEN)]) for seq in range(2)])
    golden = attend(REFERENCE_OPS, queries[0], caches, [CONTEXT_LEN], [CONTEXT_LEN], order[:1], window)
    torch.testing.assert_close(whole[0].cpu(), golden.cpu(), atol=2e-3 if dtype == torch.float16 else 2e-6, rtol=2e-3)
    for position in (0, 1, 15, 16, 40, 74):
        decodes = compute([(1, position, position + 1), (0, 74, 75), (0, position, position + 1)])
        assert torch.equal(decodes[0], whole[1, position]) and torch.equal(decodes[2], whole[0, position]), position
    for first, last in ((0, 16), (0, 33), (7, 40), (39, 75), (60, 62)):
        both = compute([(0, first, last), (1, 74, 75), (1, first, last)])
        assert torch.equal(both[: last - first], whole[0, first:last]), (first, last)
        assert torch.equal(both[last - first + 1 :], whole[1, first:last]), (first, last)


def test_the_usual_kernels_follow_the_batch():
    """What the option is for: with more sequences a context has fewer parts. And `assert_invariant` can fail."""
    caches = LayerCache(*random(2, 40, BLOCK_SIZE, 1, 16))
    q = random(8, 1, 16, seed=2)
    tables = [list(range(19))] * 8
    alone = attend(TRITON_OPS, q[:1], caches, [1], [CONTEXT_LEN], tables[:1], None)
    together = attend(TRITON_OPS, q, caches, [1] * 8, [CONTEXT_LEN] * 8, tables, None)
    torch.testing.assert_close(alone[0], together[0], atol=2e-6, rtol=2e-6)
    assert not torch.equal(alone[0], together[0])


def test_a_row_that_fills_up_gives_zeros():
    caches = LayerCache(*random(2, 40, BLOCK_SIZE, 2, 16))
    found = attend(OPS, random(3, 4, 16), caches, [1, 1, 1], [5, 0, 0], [[1, 2]] * 3, None)
    assert found[0].abs().sum() > 0 and not found[1:].any()
