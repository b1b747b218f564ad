"""The fast versions of the small ops against the golden ones, and the selection of a table."""

import dataclasses
import inspect

import pytest
import torch

from lullm.errors import UnsupportedError
from lullm.ops import torch_cpu
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu.library import absence
from lullm.ops.selection import (
    NATIVE_CPU_OPS,
    REFERENCE_OPS,
    TORCH_CPU_OPS,
    require_batch_invariance,
    select_ops,
    with_features,
)

FAST, GOLD = TORCH_CPU_OPS, REFERENCE_OPS
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
ROWS = pytest.mark.parametrize("num_rows", [1, 2, 33])


def random(*shape, dtype, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_close(actual, expected):
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}[expected.dtype]
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("ops", [NATIVE_CPU_OPS, TORCH_CPU_OPS, REFERENCE_OPS], ids=lambda ops: ops.name)
def test_no_op_takes_more_than_six_arguments(ops):
    functions = [getattr(ops, field.name) for field in dataclasses.fields(ops) if callable(getattr(ops, field.name))]
    assert len(functions) > 15
    for function in functions:
        assert len(inspect.signature(function).parameters) <= 6, function


def test_selection():
    assert select_ops("cpu") is (TORCH_CPU_OPS if absence() else NATIVE_CPU_OPS)
    with pytest.raises(UnsupportedError, match="cuda"):
        select_ops("cuda")


def test_selection_of_attention():
    gathered = select_ops("cpu", "torch")
    assert gathered.attention is TORCH_CPU_OPS.attention
    assert gathered.prepare_attention is TORCH_CPU_OPS.prepare_attention
    assert gathered.linear is select_ops("cpu").linear
    assert gathered.attention_features == {"soft_cap", "sinks", "latents"}
    for backend in ("triton", "flashinfer"):
        with pytest.raises(UnsupportedError, match=backend):
            select_ops("cpu", backend)


@pytest.mark.parametrize("dtype, cache_dtype, head_size", [("float16", "float16", 64), ("bfloat16", "bfloat16", 40)])
def test_batch_invariance_is_refused_where_torch_would_serve(dtype, cache_dtype, head_size):
    require_batch_invariance(NATIVE_CPU_OPS, "bfloat16", "bfloat16", 64, False)
    require_batch_invariance(NATIVE_CPU_OPS, "float32", "float32", 16, False)
    for cache_type in ("int8", "fp8_e4m3"):
        require_batch_invariance(NATIVE_CPU_OPS, "bfloat16", cache_type, 64, False)
    with pytest.raises(UnsupportedError, match="no native kernels serve"):
        require_batch_invariance(NATIVE_CPU_OPS, dtype, cache_dtype, head_size, False)
    gathered = select_ops("cpu", "torch")
    for ops in (TORCH_CPU_OPS, REFERENCE_OPS, gathered):
        with pytest.raises(UnsupportedError, match=f"follow the batch in {ops.name}"):
            require_batch_invariance(ops, "bfloat16", "bfloat16", 64, False)


@pytest.mark.parametrize("ops", [NATIVE_CPU_OPS, TORCH_CPU_OPS, REFERENCE_OPS], ids=lambda ops: ops.name)
def test_a_model_gets_attention_that_has_what_it_asks_for(ops):
    plain = dataclasses.replace(ops, attention_features=frozenset())
    assert with_features(plain, frozenset()) is plain
    for feature in ("soft_cap", "sinks", "latents"):
        assert with_features(ops, frozenset({feature})) is ops
        found = with_features(plain, frozenset({feature}))
        assert feature in found.attention_features and found.attention is TORCH_CPU_OPS.attention
        assert found.is_recordable is False and found.linear is ops.linear


def test_kernels_of_a_gpu_leave_latents_to_torch():
    """Of 576 elements, read by 128 heads at once: no tile of registers holds them, and decodes are not recorded."""
    table = pytest.importorskip("lullm.ops.triton.table")
    found = with_features(table.TRITON_OPS, frozenset({"latents"}))
    assert found is table.GATHERED_OPS and not found.is_recordable


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
    # A version may round the product to x's dtype on the way.
    assert FAST.logits(x, weight).dtype == GOLD.logits(x, weight).dtype == torch.float32
    assert_close(FAST.logits(x, weight).to(x.dtype), GOLD.logits(x, weight).to(x.dtype))


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


def cos_sin(head_size, num_positions=500):
    angles = torch.outer(torch.arange(float(num_positions)), 1 / 100 ** torch.linspace(0, 1, head_size // 2))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


@DTYPES
@ROWS
@pytest.mark.parametrize("head_size", [2, 64, 80, 128])
@pytest.mark.parametrize("norms", ["none", "both"])
def test_rope_and_cache(dtype, num_rows, head_size, norms):
    qkv = random(num_rows, 8, head_size, dtype=dtype)
    head_norm = HeadNorm(*(random(head_size, dtype=dtype, seed=s) for s in (2, 3)), 1e-6) if norms == "both" else None
    positions = torch.randint(0, 500, (num_rows,), generator=torch.Generator().manual_seed(1))
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2))[:num_rows]
    slots[2:4] = -1  # written nowhere
    caches = {ops.name: [torch.full((4, 16, 2, head_size), 7.0, dtype=dtype) for _ in range(2)] for ops in (FAST, GOLD)}
    q = {
        ops.name: ops.rope_and_cache(
            qkv, head_norm, positions, cos_sin(head_size), LayerCache(*caches[ops.name]), slots
        )
        for ops in (FAST, GOLD)
    }
    assert q[FAST.name].shape == (num_rows, 4, head_size)
    assert_close(q[FAST.name], q[GOLD.name])
    for actual, expected in zip(caches[FAST.name], caches[GOLD.name], strict=True):
        assert_close(actual, expected)
        assert (expected == 7).all(dim=(2, 3)).sum() == 64 - (slots >= 0).sum()


def test_rope_keeps_length_and_depends_on_distance_only():
    cache = cos_sin(64, 100)
    q, k = random(1, 1, 64, dtype=torch.float32), random(1, 1, 64, dtype=torch.float32, seed=1)

    def score(query_position, key_position):
        rotated_q, _ = torch_cpu.rope(q.clone(), k.clone(), torch.tensor([query_position]), cache)
        _, rotated_k = torch_cpu.rope(q.clone(), k.clone(), torch.tensor([key_position]), cache)
        torch.testing.assert_close(rotated_q.norm(), q.norm())
        return (rotated_q * rotated_k).sum()

    torch.testing.assert_close(score(17, 5), score(82, 70), atol=1e-4, rtol=1e-4)
    assert (score(17, 5) - score(17, 6)).abs() > 1e-2


@DTYPES
@ROWS
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
def test_gated_linear(dtype, num_rows, with_bias, activation):
    """The torch version rounds gates and ups before it multiplies them, hence once more than the golden one."""
    x, weight = random(num_rows, 65, dtype=dtype), random(2 * 37, 65, dtype=dtype, seed=1) / 8
    bias = random(2 * 37, dtype=dtype, seed=2) if with_bias else None
    assert_close(FAST.gated_linear(x, weight, bias, activation), GOLD.gated_linear(x, weight, bias, activation))


def test_gated_linear_is_what_it_says():
    x, weight = random(3, 20, dtype=torch.float32), random(2 * 5, 20, dtype=torch.float32, seed=1)
    expected = torch.nn.functional.silu(x @ weight[:5].T) * (x @ weight[5:].T)
    torch.testing.assert_close(GOLD.gated_linear(x, weight, None, "silu"), expected)


FORMULAS = {
    "silu": lambda x: x * torch.sigmoid(x),
    "gelu": lambda x: x * torch.distributions.Normal(0, 1).cdf(x),
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "relu": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
}


@DTYPES
@pytest.mark.parametrize("activation", FORMULAS)
def test_activate(dtype, activation):
    x = torch.linspace(-6, 6, 301).to(dtype)
    expected = FORMULAS[activation](x.double()).to(dtype)
    assert_close(GOLD.activate(x, activation), expected)
    assert_close(FAST.activate(x, activation), expected)
    assert (GOLD.activate(x, "gelu") != GOLD.activate(x, "gelu_tanh")).any()


@DTYPES
@pytest.mark.parametrize("with_bias", [False, True])
def test_layer_norm(dtype, with_bias):
    x, weight = random(7, 80, dtype=dtype) * 3 + 5, random(80, dtype=dtype, seed=1)
    bias = random(80, dtype=dtype, seed=2) if with_bias else None
    centred = x.double() - x.double().mean(1, keepdim=True)
    expected = centred / (centred.pow(2).mean(1, keepdim=True) + 1e-5).sqrt() * weight.double()
    expected = (expected if bias is None else expected + bias.double()).to(dtype)
    for ops in (GOLD, FAST):
        assert_close(ops.layer_norm(x, weight, bias, 1e-5), expected)


@pytest.mark.parametrize("ops", [GOLD, FAST], ids=lambda ops: ops.name)
def test_write_cache_changes_nothing_on_the_way(ops):
    """Neither norm nor rotation, whatever the position; a row of slot -1 is written nowhere."""
    kv = random(3, 4, 16, dtype=torch.float32)
    cache = LayerCache(*torch.full((2, 4, 8, 2, 16), 7.0))
    ops.write_cache(kv, cache, torch.tensor([9, -1, 31]))
    for side, rows in ((cache.key, kv[:, :2]), (cache.value, kv[:, 2:])):
        slots = side.view(-1, 2, 16)
        assert torch.equal(slots[[9, 31]], rows[[0, 2]]) and (slots == 7).all(dim=(1, 2)).sum() == 30


def random_cache(seed):
    return LayerCache(random(6, 4, 2, 8, dtype=torch.float32, seed=seed), random(6, 4, 2, 8, dtype=torch.float32))


def assert_equal(caches, expected_caches):
    for cache, expected in zip(caches, expected_caches, strict=True):
        assert torch.equal(cache.key, expected.key) and torch.equal(cache.value, expected.value)


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
    fast = [random_cache(seed) for seed in (1, 2)]
    gold = [LayerCache(cache.key.clone(), cache.value.clone()) for cache in fast]
    FAST.copy_blocks(fast, pairs)
    GOLD.copy_blocks(gold, pairs)
    assert_equal(fast, gold)


def test_swap_blocks_between_pools():
    device = [random_cache(seed) for seed in (1, 2)]
    host = [LayerCache(*torch.zeros(2, 9, 4, 2, 8)) for _ in range(2)]
    expected = [LayerCache(*torch.zeros(2, 9, 4, 2, 8)) for _ in range(2)]
    pairs = [(0, 8), (5, 1), (3, 0), (3, 4)]
    FAST.swap_blocks(device, host, pairs)
    GOLD.swap_blocks(device, expected, pairs)
    assert_equal(host, expected)
    assert torch.equal(host[0].key[8], device[0].key[0])
