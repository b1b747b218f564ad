"""The fast versions of the small ops against the golden ones, and the selection of a table."""

import pytest
import torch

from lullm.errors import UnsupportedError
from lullm.ops.cpu.library import absence
from lullm.ops.table import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS, select_ops

FAST, GOLD = TORCH_CPU_OPS, REFERENCE_OPS
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
ROWS = pytest.mark.parametrize("num_rows", [1, 2, 33])


def random(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual, expected):
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[expected.dtype]
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


def test_selection():
    assert select_ops("cpu") is (TORCH_CPU_OPS if absence() else NATIVE_CPU_OPS)
    with pytest.raises(UnsupportedError, match="cuda"):
        select_ops("cuda")


@DTYPES
def test_embedding(dtype):
    weight, token_ids = random(50, 24, dtype=dtype), torch.tensor([3, 49, 0, 3])
    assert torch.equal(FAST.embedding(token_ids, weight), GOLD.embedding(token_ids, weight))


@DTYPES
@ROWS
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(dtype, num_rows, with_bias):
    x, weight = random(num_rows, 65, dtype=dtype), random(33, 65, dtype=dtype, seed=1) / 8
    bias = random(33, dtype=dtype, seed=2) if with_bias else None
    assert_close(FAST.linear(x, weight, bias), GOLD.linear(x, weight, bias))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 64), (33, 80), (5, 7, 128)], ids=str)
def test_rms_norm(dtype, shape):
    x, weight = random(*shape, dtype=dtype) * 3, random(shape[-1], dtype=dtype, seed=1)
    before = x.clone()
    assert_close(FAST.rms_norm(x, weight, 1e-6), GOLD.rms_norm(x, weight, 1e-6))
    assert torch.equal(x, before)


def test_rms_norm_rounds_before_the_weight():
    """The order that checkpoints were trained and evaluated with; the other order differs in most elements."""
    x, weight = random(200, 128, dtype=torch.bfloat16), random(128, dtype=torch.bfloat16, seed=1)
    assert (FAST.rms_norm(x, weight, 1e-6) == GOLD.rms_norm(x, weight, 1e-6)).float().mean() > 0.999


def test_rms_norm_of_a_strided_view():
    """Query and key heads are normed as slices of the fused projection."""
    heads = random(5, 12, 64, dtype=torch.float32)[:, 3:9]
    weight = random(64, dtype=torch.float32, seed=1)
    assert_close(FAST.rms_norm(heads, weight, 1e-5), GOLD.rms_norm(heads, weight, 1e-5))


@DTYPES
def test_add_rms_norm(dtype):
    x, residual, weight = (random(9, 64, dtype=dtype, seed=s) for s in (0, 1, 2))
    weight = weight[0]
    normed, total = GOLD.add_rms_norm(x.clone(), residual.clone(), weight, 1e-6)
    fast_normed, fast_total = FAST.add_rms_norm(x, residual, weight, 1e-6)
    assert_close(fast_normed, normed)
    assert torch.equal(fast_total, total)


@DTYPES
@ROWS
@pytest.mark.parametrize("head_size", [2, 64, 80, 128])
def test_rope(dtype, num_rows, head_size):
    qkv = random(num_rows, 8, head_size, dtype=dtype)
    q, k = qkv[:, :4], qkv[:, 4:6]
    angles = torch.outer(torch.arange(500.0), 1 / 100 ** torch.linspace(0, 1, head_size // 2))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.randint(0, 500, (num_rows,), generator=torch.Generator().manual_seed(1))
    expected = GOLD.rope(q.clone(), k.clone(), positions, cache)
    for actual, gold in zip(FAST.rope(q, k, positions, cache), expected, strict=True):
        assert_close(actual, gold)


def test_rope_keeps_length_and_depends_on_distance_only():
    angles = torch.outer(torch.arange(100.0), 1 / 100 ** torch.linspace(0, 1, 32))
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    q, k = random(1, 1, 64, dtype=torch.float32), random(1, 1, 64, dtype=torch.float32, seed=1)

    def score(query_position, key_position):
        rotated_q, _ = FAST.rope(q.clone(), k.clone(), torch.tensor([query_position]), cache)
        _, rotated_k = FAST.rope(q.clone(), k.clone(), torch.tensor([key_position]), cache)
        torch.testing.assert_close(rotated_q.norm(), q.norm())
        return (rotated_q * rotated_k).sum()

    torch.testing.assert_close(score(17, 5), score(82, 70), atol=1e-4, rtol=1e-4)
    assert (score(17, 5) - score(17, 6)).abs() > 1e-2


@DTYPES
@ROWS
def test_silu_mul(dtype, num_rows):
    gate_up = random(num_rows, 2 * 37, dtype=dtype)
    assert_close(FAST.silu_mul(gate_up.clone()), GOLD.silu_mul(gate_up))


@DTYPES
def test_write_kv(dtype):
    qkv = random(6, 8, 16, dtype=dtype)  # keys and values are slices of the fused projection
    k, v = qkv[:, 4:6], qkv[:, 6:8]
    slots = torch.tensor([5, 31, 0, 8, 9, 23])
    fast = [torch.full((4, 8, 2, 16), float("nan"), dtype=dtype) for _ in range(2)]
    gold = [cache.clone() for cache in fast]
    FAST.write_kv(k, v, *fast, slots)
    GOLD.write_kv(k, v, *gold, slots)
    for actual, expected in zip(fast, gold, strict=True):
        assert torch.equal(actual.nan_to_num(nan=77), expected.nan_to_num(nan=77))
        assert expected.isfinite().sum() == 6 * 2 * 16


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(0, 1)],
        [(0, 1), (0, 2), (5, 3)],
        [(0, 1), (1, 2)],  # a copy of a copy
        [(0, 1), (2, 0)],  # a source is overwritten later
        [(0, 1), (1, 0), (0, 4), (3, 4)],
    ],
    ids=str,
)
def test_copy_blocks_is_sequential(pairs):
    fast = [(random(6, 4, 2, 8, dtype=torch.float32, seed=s), random(6, 4, 2, 8, dtype=torch.float32)) for s in (1, 2)]
    gold = [(k.clone(), v.clone()) for k, v in fast]
    FAST.copy_blocks(fast, pairs)
    GOLD.copy_blocks(gold, pairs)
    for layer, expected in zip(fast, gold, strict=True):
        assert torch.equal(layer[0], expected[0]) and torch.equal(layer[1], expected[1])


def test_swap_blocks_between_pools():
    device = [
        (random(6, 4, 2, 8, dtype=torch.float32, seed=s), random(6, 4, 2, 8, dtype=torch.float32)) for s in (1, 2)
    ]
    host = [tuple(torch.zeros(9, 4, 2, 8) for _ in range(2)) for _ in range(2)]
    expected = [tuple(torch.zeros(9, 4, 2, 8) for _ in range(2)) for _ in range(2)]
    pairs = [(0, 8), (5, 1), (3, 0), (3, 4)]
    FAST.swap_blocks(device, host, pairs)
    GOLD.swap_blocks(device, expected, pairs)
    for layer, gold in zip(host, expected, strict=True):
        assert torch.equal(layer[0], gold[0]) and torch.equal(layer[1], gold[1])
    assert torch.equal(host[0][0][8], device[0][0][0])
