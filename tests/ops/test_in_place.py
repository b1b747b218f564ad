"""The ops that change elements in place: every version beside the definition, and rows by themselves."""

import pytest
import torch

from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.selection import NATIVE_CPU_OPS, REFERENCE_OPS, TORCH_CPU_OPS

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
SHAPES = pytest.mark.parametrize("shape", [(1, 1024), (3, 7), (300, 80), (0, 16)], ids=str)
LIBRARY = load_library()
VERSIONS = ["reference", "torch", *(() if LIBRARY is None else LIBRARY.available_isas)]


@pytest.fixture(params=VERSIONS)
def ops(request):
    if request.param in ("reference", "torch"):
        return REFERENCE_OPS if request.param == "reference" else TORCH_CPU_OPS
    assert absence() is None and LIBRARY.handle.lullm_select_isa(request.param.encode())
    request.addfinalizer(lambda: LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode()))
    return NATIVE_CPU_OPS


def normal(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@DTYPES
@SHAPES
def test_add(ops, dtype, shape):
    total, x = normal(*shape, dtype=dtype), normal(*shape, dtype=dtype, seed=1)
    expected = (total.double() + x.double()).to(dtype)
    ops.add_(total, x)
    assert torch.equal(total, expected)


@DTYPES
@SHAPES
def test_xielu(ops, dtype, shape):
    x = (normal(*shape) * 3).to(dtype)
    numbers = [torch.tensor(value, dtype=dtype) for value in ([0.6], [-0.2], 0.5, -1e-6)]
    exact, (p, n, beta, eps) = x.double(), [number.double() for number in numbers]
    above = p.exp().log1p() * exact.square()
    below = (beta + n.exp().log1p()) * (torch.expm1(torch.minimum(exact, eps)) - exact)
    expected = (torch.where(exact > 0, above, below) + beta * exact).to(dtype)
    ops.xielu_(x, *numbers)
    torch.testing.assert_close(x, expected, rtol=3 * torch.finfo(dtype).eps, atol=2e-6)


@DTYPES
def test_join(ops, dtype):
    """Of parts of longer rows."""
    x, y = normal(5, 12, dtype=dtype)[:, 2:9], normal(5, 7, dtype=dtype, seed=1)[:, :4]
    assert torch.equal(ops.join(x, y), torch.cat((x, y), dim=1))


@DTYPES
@SHAPES
def test_scale(ops, dtype, shape):
    x = normal(*shape, dtype=dtype)
    expected = (x.double() * torch.tensor(0.3, dtype=torch.float32).double()).to(dtype)
    ops.scale_(x, 0.3)
    torch.testing.assert_close(x, expected, rtol=torch.finfo(dtype).eps, atol=0)


@DTYPES
@SHAPES
def test_soft_cap(ops, dtype, shape):
    x = (normal(*shape) * 20).to(dtype)
    expected = (5 * torch.tanh(x.double() / 5)).to(dtype)
    ops.soft_cap_(x, 5.0)
    torch.testing.assert_close(x, expected, rtol=3 * torch.finfo(dtype).eps, atol=1e-6)


def test_soft_cap_of_what_is_no_number(ops):
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, 1e30, -1e-30])
    ops.soft_cap_(x, 30.0)
    torch.testing.assert_close(x, torch.tensor([30, -30, torch.nan, 0, 30, -1e-30]), equal_nan=True)


@DTYPES
@pytest.mark.parametrize("part", [slice(0, 70), slice(70, 102)], ids=str)
def test_rms_norm_of_a_part_of_the_rows(ops, dtype, part):
    rows, weight = normal(9, 102, dtype=dtype), normal(102, dtype=dtype, seed=1)[part]
    expected = rows.clone()
    expected[:, part] = ops.rms_norm(rows[:, part], weight, 1e-5)
    ops.rms_norm_(rows[:, part], weight, 1e-5)
    assert torch.equal(rows, expected)


@DTYPES
def test_rms_norm_of_rows_in_parts(ops, dtype):
    """Queries and keys of three workers: in one sum, as if each row were whole."""
    whole = [normal(9, 3 * size, dtype=dtype, seed=size) for size in (40, 7)]
    weights = [normal(3 * size, dtype=dtype, seed=size + 1) for size in (40, 7)]
    expected = [REFERENCE_OPS.rms_norm(rows, weight, 1e-3) for rows, weight in zip(whole, weights, strict=True)]
    squares = torch.stack([rows.double().square().sum(-1) for rows in whole], dim=-1)
    found = []
    for share in range(3):
        parts = [rows.chunk(3, dim=1)[share] for rows in whole]
        fused = torch.cat([*parts, torch.full((9, 5), torch.nan, dtype=dtype)], dim=1)  # as a projection gives them
        own = [fused[:, :40], fused[:, 40:47]]
        shares = [(part, weight.chunk(3)[share]) for part, weight in zip(own, weights, strict=True)]

        def sum_all(sums, parts=parts):
            own = torch.stack([part.double().square().sum(-1) for part in parts], dim=-1)
            torch.testing.assert_close(sums.double(), own, rtol=1e-6, atol=0)
            sums.copy_(squares)

        ops.norm_shares_(shares, 3, 1e-3, sum_all)
        found.append([part.clone() for part in own])
        assert fused[:, 47:].isnan().all()
    for rows, *parts in zip(expected, *found, strict=True):
        tolerance = 4 * torch.finfo(dtype).eps
        torch.testing.assert_close(torch.cat(parts, dim=1), rows, rtol=tolerance, atol=tolerance)


@DTYPES
def test_rms_norm_of_some_heads(ops, dtype):
    rows, weight = normal(9, 7, 24, dtype=dtype), normal(24, dtype=dtype, seed=1)
    expected = rows.clone()
    expected[:, 4:6] = ops.rms_norm(rows[:, 4:6].contiguous(), weight, 1e-5)
    ops.rms_norm_(rows[:, 4:6], weight, 1e-5)
    assert torch.equal(rows, expected)


@DTYPES
@SHAPES
def test_scale_by(ops, dtype, shape):
    x, factor = normal(*shape, dtype=dtype), normal(1, dtype=dtype, seed=2)
    expected = (x.double() * factor.double()).to(dtype)
    ops.scale_by_(x, factor)
    assert torch.equal(x, expected)


@DTYPES
@pytest.mark.parametrize("head_size", [8, 34, 64])
@pytest.mark.parametrize("has_norm", [False, True])
def test_rotate_is_what_queries_get(ops, dtype, head_size, has_norm):
    """Of parts of longer heads, which stay as they are beside them."""
    x, table = normal(9, 3, head_size + 10, dtype=dtype), normal(20, head_size, dtype=torch.float32, seed=1)
    weight, positions = normal(head_size, dtype=dtype, seed=2), torch.arange(9) * 2
    norm = HeadNorm(weight, weight, 1e-5) if has_norm else None
    cache = LayerCache(*torch.zeros(2, 1, 1, 1, head_size, dtype=dtype))
    heads = torch.cat((x[..., 10:], torch.zeros(9, 2, head_size, dtype=dtype)), dim=1)
    slots = torch.full((9,), -1)
    expected = x.clone()
    expected[..., 10:] = REFERENCE_OPS.rope_and_cache(heads, norm, positions, table, cache, slots)
    ops.rotate_(x[..., 10:], norm, positions, table)
    torch.testing.assert_close(x, expected, rtol=2 * torch.finfo(dtype).eps, atol=4e-6)


@pytest.mark.skipif(LIBRARY is None, reason="the native ops are not built here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", ["add_", "scale_", "soft_cap_", "rms_norm_"])
def test_a_row_does_not_depend_on_its_batch(ops, dtype, change):
    """Whatever lies beside it, and on however many threads."""
    weight = normal(70, dtype=dtype, seed=1)

    def changed(rows, num_threads):
        native.set_num_threads(num_threads)
        y = rows.clone()
        arguments = {"add_": (rows * 0.7,), "rms_norm_": (weight, 1e-6)}.get(change, (0.7,))
        getattr(ops, change)(y, *arguments)
        return y

    rows = normal(2000, 70, dtype=dtype)
    whole = changed(rows, 2)
    assert torch.equal(whole, changed(rows, 1))
    for first, count in ((0, 1), (7, 1), (3, 40), (1999, 1)):
        assert torch.equal(changed(rows[first : first + count], 2), whole[first : first + count])


@pytest.mark.pairs
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 1000, 151_936])
@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999, 1.0])
def test_forbid(ops, vocab_size, share):
    """In some rows of logits that stand in a wider tensor; the last word of a row has bits behind the vocabulary."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = normal(5, vocab_size + 3, dtype=torch.float32)[:, :vocab_size]
    rows, num_words = torch.tensor([4, 0, 2]), -(-vocab_size // 32)
    is_allowed = torch.rand((3, 32 * num_words), generator=generator) < share
    bits = (is_allowed.view(3, num_words, 32).long() << torch.arange(32)).sum(-1)
    expected = logits.clone()
    expected[rows] = expected[rows].masked_fill(~is_allowed[:, :vocab_size], -torch.inf)
    ops.forbid_(logits, rows, bits.to(torch.int32))
    assert torch.equal(logits, expected)


def test_forbid_what_is_no_number(ops):
    """A broken logit that may come stays broken, so that the draw says so."""
    logits = torch.full((1, 40), torch.nan)
    ops.forbid_(logits, torch.tensor([0]), torch.tensor([[0b110, 0]], dtype=torch.int32))
    assert logits[0].isnan().nonzero().flatten().tolist() == [1, 2] and logits[0, 0] == -torch.inf
