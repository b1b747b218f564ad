"""A row's bits depend on that row alone: not on the rows beside it, its position, the threads or where it lies.

Every dense native op, in every instruction set of this machine: each row by itself against batches that begin anywhere,
bit for bit. Rows differ in scale, and some are so small that sums underflow.
"""

import pytest
import torch

from lullm.ops.cache.float8_cache import as_bytes
from lullm.ops.cache.layer_cache import HeadNorm
from lullm.ops.cpu import native, native_attention, quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.cpu.recording import call
from lullm.ops.quantized.weight import QuantizedLayout

from .test_native_cache import KINDS, empty_cache

if absence() is not None:
    pytest.skip(f"no native ops: {absence()}", allow_module_level=True)

LIBRARY = load_library()
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
ACTIVATIONS = pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu", "relu2"])
NUM_ROWS = 600
BATCHES = [(0, 2), (7, 3), (11, 7), (64, 8), (5, 12), (100, 13), (3, 16), (130, 25), (250, 33), (290, 100), (0, 600)]
"""First row and number of rows."""
# in, out: whole panels; a depth of several blocks and a rest of rows; no whole tiles; no whole panel
SHAPES = pytest.mark.parametrize("shape", [(64, 64), (1120, 200), (70, 40), (96, 8)], ids=str)


@pytest.fixture(autouse=True, params=LIBRARY.available_isas)
def isa(request):
    assert LIBRARY.handle.lullm_select_isa(request.param.encode())
    yield request.param
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())
    native.set_num_threads(2)


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_rows(depth, dtype):
    rows = normal(NUM_ROWS, depth) * torch.logspace(-3, 2, NUM_ROWS).unsqueeze(1)
    rows[17::100] *= 1e-37  # products of these are denormal
    rows[5] = 0
    return rows.to(dtype)


def assert_invariant(compute, rows):
    """`compute(rows)` gives each row's results in its first dimension."""
    native.set_num_threads(1)
    alone = torch.cat([compute(rows[i : i + 1]) for i in range(len(rows))])
    for num_threads in (1, 2):
        native.set_num_threads(num_threads)
        for first, count in BATCHES:
            part = rows[first : first + count]
            assert torch.equal(compute(part), alone[first : first + count]), (first, count, num_threads)
    beside = torch.full((40, 2 * rows[0].numel() + 3), torch.nan, dtype=rows.dtype)  # another stride and alignment
    beside[:, 3 : 3 + rows[0].numel()] = rows[:40].flatten(1)
    moved = beside[:, 3 : 3 + rows[0].numel()].unflatten(1, rows.shape[1:])
    assert torch.equal(compute(moved), alone[:40])


def packed(*shape, dtype, seed=1):
    weight = normal(*shape, dtype=dtype, seed=seed) / shape[1] ** 0.5
    native.pack_weight_(weight)
    return weight


@DTYPES
@pytest.mark.parametrize("num_rows", [2, 40, 64])
def test_rows_that_a_thread_prepared_are_of_one_operation(dtype, num_rows):
    """Each thread prepares few rows for itself, once: the next operation's have the same size and place."""
    x, weight = normal(num_rows, 128, dtype=dtype), packed(2048, 128, dtype=dtype)
    for _ in range(5):
        before = native.linear(x, weight, None)
        x *= 2
        assert torch.equal(native.linear(x, weight, None), 2 * before)


@DTYPES
def test_results_that_begin_within_a_cache_line(dtype):
    """Stores past the caches want whole lines, so these go the usual way; what lies around them stays."""
    x, weight = make_rows(64, dtype)[:40], normal(128, 64, dtype=dtype, seed=1)
    native.pack_weight_(weight)
    expected = native.linear(x, weight, None)
    for first, stride in ((0, 136), (4, 128), (4, 136)):
        memory = torch.full((41 * stride,), 7, dtype=dtype)
        y = memory.as_strided((40, 128), (stride, 1), first)
        sizes = x.stride(0), stride, 40, 64, 128, native.DTYPES[dtype]
        call("lullm_linear", x.data_ptr(), weight.data_ptr(), None, y.data_ptr(), *sizes)
        assert torch.equal(y, expected)
        y.fill_(7)
        assert (memory == 7).all()


@pytest.mark.pairs
@DTYPES
@SHAPES
def test_linear_and_logits(dtype, shape):
    depth, num_outputs = shape
    weight, bias = packed(num_outputs, depth, dtype=dtype), normal(num_outputs, dtype=dtype, seed=2)
    rows = make_rows(depth, dtype)
    assert_invariant(lambda x: native.linear(x, weight, bias), rows)
    assert_invariant(lambda x: native.logits(x, weight), rows)


@pytest.mark.pairs
@DTYPES
@SHAPES
@ACTIVATIONS
def test_gated_linear(dtype, shape, activation):
    depth, num_outputs = shape
    weight, bias = packed(num_outputs, depth, dtype=dtype), normal(num_outputs, dtype=dtype, seed=2)
    if depth == 1120:
        weight = packed(192, depth, dtype=dtype)  # gates and ups in whole panels
        bias = None
    assert_invariant(lambda x: native.gated_linear(x, weight, bias, activation), make_rows(depth, dtype))


@pytest.mark.pairs
@DTYPES
@SHAPES
@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_linear(bits, dtype, shape):
    depth, num_outputs = shape
    layout = QuantizedLayout(bits, num_outputs, depth)
    weight = torch.zeros(layout.shape, dtype=torch.uint8)
    quantized_native.quantize_rows_(weight, layout, 0, normal(num_outputs, depth, seed=1))
    bias, rows = normal(num_outputs, dtype=dtype, seed=2), make_rows(depth, dtype)
    assert_invariant(lambda x: quantized_native.quantized_linear(x, weight, layout, bias), rows)
    assert_invariant(lambda x: quantized_native.quantized_logits(x, weight, layout), rows)
    for activation in ("silu", "gelu_tanh"):
        assert_invariant(
            lambda x, a=activation: quantized_native.quantized_gated_linear(x, weight, layout, bias, a), rows
        )


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("size", [64, 70, 1000])
def test_norms(dtype, size):
    rows, weight, residual = make_rows(size, dtype), normal(size, dtype=dtype, seed=1), normal(size, dtype=dtype)
    assert_invariant(lambda x: native.rms_norm(x, weight, 1e-6), rows)
    assert_invariant(lambda x: torch.cat(native.add_rms_norm(x.clone(), x * residual, weight, 1e-6), dim=1), rows)

    def norm_share(x):
        x = x.clone()
        native.norm_shares_([(x[:, :30], weight[:30]), (x[:, 30:], weight[30:])], 2, 1e-6, lambda sums: sums.mul_(2))
        return x

    assert_invariant(norm_share, rows)
    heads = rows[:, : size // 10 * 10].unflatten(1, (10, -1))
    assert_invariant(lambda x: native.rms_norm(x, weight[: size // 10], 1e-6), heads.contiguous())


@pytest.mark.pairs
@DTYPES
@pytest.mark.parametrize("with_norms", [False, True])
@pytest.mark.parametrize("head_size", [16, 72])
@pytest.mark.parametrize("kind", KINDS)
def test_rope_and_cache(dtype, with_norms, head_size, kind):
    head_norm = HeadNorm(*(normal(head_size, dtype=dtype, seed=s) for s in (2, 3)), 1e-6) if with_norms else None
    cos_sin = normal(9, head_size, seed=4)
    cache = empty_cache(kind, NUM_ROWS, 1, 2, head_size, dtype=dtype)

    def compute(qkv):  # every row at the same position of its sequence, so that only the row may decide
        count = len(qkv)
        q = native_attention.rope_and_cache(
            qkv, head_norm, torch.full((count,), 8), cos_sin, cache, torch.arange(count)
        )
        return torch.cat([as_bytes(side)[:count].flatten(1).double() for side in (q, *cache.tensors)], dim=1)

    assert_invariant(compute, make_rows(6 * head_size, dtype).unflatten(1, (6, head_size)))


@DTYPES
@ACTIVATIONS
def test_activations(dtype, activation):
    rows = make_rows(70, dtype)
    assert_invariant(lambda x: native.activate(x, activation), rows)


@DTYPES
def test_layer_norm(dtype):
    rows, weight, bias = make_rows(70, dtype), normal(70, dtype=dtype, seed=1), normal(70, dtype=dtype, seed=2)
    for given in (None, bias):
        assert_invariant(lambda x, b=given: native.layer_norm(x, weight, b, 1e-5), rows)


@DTYPES
def test_every_vector_set_has_the_same_sums(dtype, isa):
    """Only AMX sums in its own order, and NEON's dot products round otherwise. The others may use either product."""
    if isa == "amx" or (isa == "neon_bf16" and dtype is torch.bfloat16):
        pytest.skip("sums of its own")
    weight, rows = packed(64, 1120, dtype=dtype), make_rows(1120, dtype)[:40]
    found = native.logits(rows, weight)
    assert LIBRARY.handle.lullm_select_isa(LIBRARY.available_isas[0].encode())
    assert torch.equal(native.logits(rows, weight), found)
