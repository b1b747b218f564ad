"""Quantized weights: the error of the formats, and every version of the ops against the golden one.

Bounds. A weight of 8 bits is at most half a step of its row from what it was. Linear layers: torch multiplies in
float32, a few 1e-6 of the products' size. Native ones round x to 16 bits: at most half a step, max|x| / 65534, times
the sum of |weight|; and float32 results add up as integers, so a row has the same bits in any company and instruction
set. Bfloat16 results are rounded once on top of that, by 2**-9 of their size, logits not; there AMX adds up in other
portions.
"""

import pytest
import torch
from torch.nn import functional as F

from lullm.errors import ModelLoadError
from lullm.ops import reference
from lullm.ops.cpu import quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.quantized import expansion
from lullm.ops.quantized import reference as quantized_reference
from lullm.ops.quantized.weight import QuantizedLayout, dequantize, dequantize_rows, quantize_rows_

LIBRARY = load_library()
ISAS = LIBRARY.available_isas if LIBRARY else ()
needs_native = pytest.mark.skipif(LIBRARY is None, reason=f"no native ops: {absence()}")
BITS = pytest.mark.parametrize("bits", [8, 4])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
# in, out: whole blocks and panels; the last of each partly filled; gates and ups of whole panels; one input, one output
SHAPES = [(64, 32), (256, 96), (100, 37), (704, 128), (1, 33), (65, 1)]


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def make_weight(shape, seed=0):
    """[out, in], rows of very different sizes, one of them zeros, with an outlier."""
    depth, num_outputs = shape
    weight = normal(num_outputs, depth, seed=seed) * torch.logspace(-3, 1, num_outputs)[:, None]
    weight[num_outputs // 2, depth // 2] = 20
    if num_outputs > 2:
        weight[num_outputs // 3] = 0
    return weight


def quantized(weight, bits, quantize=quantize_rows_):
    layout = QuantizedLayout(bits, *weight.shape)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    quantize(storage, layout, 0, weight)
    return storage, layout


def relative_error(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_eight_bits_are_within_half_a_step(shape):
    weight = make_weight(shape)
    found = dequantize(*quantized(weight, 8))
    steps = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((found - weight).abs() <= steps * 0.5001).all()
    assert (found[weight.eq(0)] == 0).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_four_bits_are_within_a_step_of_their_group(shape):
    weight = make_weight(shape)
    found = dequantize(*quantized(weight, 4))
    groups, row = F.pad(weight.abs(), (0, -shape[0] % 16)).unflatten(1, (-1, 16)), weight.abs().amax(dim=1)[:, None]
    # The coarsest scale that is tried leaves a group's largest value in reach; a row's finest is 1/120 of its largest.
    steps = torch.maximum(groups.amax(dim=-1) / 7 + row / 120, row / 120).repeat_interleave(16, dim=1)[:, : shape[0]]
    assert ((found - weight).abs() <= steps * 1.3).all()


def test_errors_of_normal_weights():
    """What docs/quantization.md says: 0.8 % in 8 bits; 7.5 % in 4, where a scale per 32 inputs would give 8.6 %."""
    weight = normal(256, 1024)
    assert relative_error(dequantize(*quantized(weight, 8)), weight) == pytest.approx(0.0079, rel=0.03)
    assert relative_error(dequantize(*quantized(weight, 4)), weight) == pytest.approx(0.0745, rel=0.03)


def test_storage_is_as_small_as_promised():
    weights = 1024 * 3072
    for bits, per_weight in ((8, 8), (4, 4.5)):
        num_panels, panel_bytes = QuantizedLayout(bits, 3072, 1024).shape
        assert num_panels * panel_bytes * 8 == weights * per_weight + 3072 * 32


@BITS
def test_four_bits_expand_to_eight_exactly(bits):
    storage, layout = quantized(make_weight((256, 96)), bits)
    integers = dequantize(storage, layout) / storage[:, -128:].view(torch.float32).reshape(-1)[:96, None]
    integers = integers[~integers.isnan().any(dim=1)]  # the row of zeros
    assert (integers - integers.round()).abs().max() < 1e-3 and integers.round().abs().max() <= 127


@BITS
@pytest.mark.parametrize("version", [quantize_rows_, quantized_native.quantize_rows_], ids=["torch", "native"])
def test_rows_are_independent(bits, version):
    if version is not quantize_rows_ and LIBRARY is None:
        pytest.skip("no native ops")
    weight = make_weight((100, 70))
    storage, layout = quantized(weight, bits, version)
    apart = torch.zeros_like(storage)
    for first, last in ((40, 70), (0, 5), (5, 40)):
        version(apart, layout, first, weight[first:last])
    assert torch.equal(apart, storage)
    version(apart, layout, 5, make_weight((100, 35), seed=1))
    version(apart, layout, 5, weight[5:40])  # and what was there before leaves no trace
    assert torch.equal(apart, storage)


@BITS
@pytest.mark.parametrize("version", [quantize_rows_, quantized_native.quantize_rows_], ids=["torch", "native"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")], ids=str)
def test_what_is_not_finite_is_refused_before_anything_is_written(bits, version, value):
    if version is not quantize_rows_ and LIBRARY is None:
        pytest.skip("no native ops")
    storage, layout = quantized(make_weight((100, 70)), bits)
    before, rows = storage.clone(), make_weight((100, 70), seed=1)
    rows[69, 99] = value
    for dtype in (torch.float32, torch.bfloat16):
        with pytest.raises(ModelLoadError, match="not finite"):
            version(storage, layout, 0, rows.to(dtype))
        assert torch.equal(storage, before)


@BITS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@needs_native
def test_native_quantizing_writes_the_same_bytes(isa, bits, dtype):
    for shape in SHAPES:
        weight = make_weight(shape).to(dtype)
        expected, layout = quantized(weight, bits)
        found, _ = quantized(weight, bits, quantized_native.quantize_rows_)
        # Errors that are equal but for rounding may choose another scale; nothing else may differ.
        differs = (found != expected).float().mean()
        assert differs == 0 if bits == 8 else differs < 0.01
        if differs:
            wanted = weight.float()
            ours, theirs = dequantize(found, layout), dequantize(expected, layout)
            assert relative_error(ours, wanted) == pytest.approx(relative_error(theirs, wanted), rel=1e-3)


def check_linear(version, bits, dtype, shape, num_rows, extra):
    """Against the golden op in float32; `extra(x, weight)`: how far off results [T, out] may be beside rounding."""
    depth, num_outputs = shape
    storage, layout = quantized(make_weight(shape), bits)
    x = normal(num_rows, 2 * depth, dtype=dtype, seed=2)[:, :depth]  # rows with a stride
    x[0, 0] = 30
    for bias in (None, normal(num_outputs, dtype=dtype, seed=3)):
        wide_bias = None if bias is None else bias.float()
        expected = quantized_reference.quantized_linear(x.float(), storage, layout, wide_bias)
        found = version.quantized_linear(x, storage, layout, bias)
        assert found.dtype == dtype and found.shape == (num_rows, num_outputs)
        rounding = 0 if dtype == torch.float32 else 2**-8
        bound = extra(x.float(), dequantize(storage, layout)) + expected.abs() * (rounding + 2e-6) + 1e-6
        assert ((found.float() - expected).abs() <= bound).all()
        if bias is None:
            found = version.quantized_logits(x, storage, layout)
            assert found.dtype == torch.float32 and found.shape == (num_rows, num_outputs)
            assert ((found - expected).abs() <= bound - expected.abs() * rounding).all()  # only x is rounded
        if num_outputs % 2 == 0:
            gate, up = expected.chunk(2, dim=-1)
            gate_bound, up_bound = bound.chunk(2, dim=-1)
            for activation in ("silu", "gelu_tanh"):  # neither is steeper than 1.13
                gated = reference.activate(gate, activation)
                found = version.quantized_gated_linear(x, storage, layout, bias, activation)
                assert found.dtype == dtype and found.shape == (num_rows, num_outputs // 2)
                off = 1.13 * gate_bound * (up.abs() + up_bound) + gated.abs() * up_bound
                assert ((found.float() - gated * up).abs() <= off + (gated * up).abs() * 3 * rounding + 1e-5).all()


@DTYPES
@BITS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_torch_linear(bits, dtype, shape):
    check_linear(expansion, bits, dtype, shape, 5, lambda x, weight: 4e-6 * (x.abs() @ weight.abs().T))


@pytest.mark.pairs
@DTYPES
@BITS
@pytest.mark.parametrize("num_rows", [1, 2, 3, 7, 16, 33, 150])
@needs_native
def test_native_linear(isa, bits, dtype, num_rows):
    def steps(x, weight):
        return x.abs().amax(dim=1, keepdim=True) / 65534 * weight.abs().sum(dim=1) + 4e-6 * (x.abs() @ weight.abs().T)

    for shape in SHAPES:
        check_linear(quantized_native, bits, dtype, shape, num_rows, steps)


@BITS
@DTYPES
@needs_native
def test_rows_have_the_same_bits_in_any_company_and_instruction_set(bits, dtype):
    storage, layout = quantized(make_weight((704, 128)), bits)
    x = normal(21, 704, dtype=dtype)
    found = []
    for name in ISAS:
        assert LIBRARY.handle.lullm_select_isa(name.encode())
        found.append(quantized_native.quantized_linear(x, storage, layout, None))
        for first, last in ((0, 1), (3, 5), (4, 20)):
            part = quantized_native.quantized_linear(x[first:last], storage, layout, None)
            assert torch.equal(part, found[-1][first:last])
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())
    assert all(torch.equal(other, found[0]) for other in found)


@BITS
@DTYPES
@needs_native
def test_a_row_that_is_not_finite_stays_alone(isa, bits, dtype):
    storage, layout = quantized(normal(64, 64), bits)
    x = normal(20, 64, dtype=dtype)
    expected = quantized_native.quantized_linear(x, storage, layout, None)
    x[3, 5], x[4, 0] = float("nan"), float("inf")
    found = quantized_native.quantized_linear(x, storage, layout, None)
    assert found[3:5].isnan().all()
    assert torch.equal(torch.cat((found[:3], found[5:])), torch.cat((expected[:3], expected[5:])))
    assert quantized_native.quantized_linear(torch.zeros(2, 64, dtype=dtype), storage, layout, None).eq(0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_embedding(dtype):
    storage, layout = quantized(make_weight((100, 70)), 8)
    token_ids = torch.tensor([69, 0, 31, 32, 15, 16, 0])
    expected = dequantize(storage, layout)[token_ids].to(dtype)
    assert torch.equal(dequantize_rows(storage, layout, token_ids).to(dtype), expected)
    versions = [quantized_reference, expansion] + ([quantized_native] if LIBRARY else [])
    for version in versions:
        assert torch.equal(version.quantized_embedding(token_ids, storage, layout, dtype), expected)


@needs_native
def test_a_token_outside_the_vocabulary_is_refused():
    storage, layout = quantized(make_weight((64, 70)), 8)
    for token_id in (-1, 70):
        with pytest.raises(IndexError, match="vocabulary of 70"):
            quantized_native.quantized_embedding(torch.tensor([3, token_id]), storage, layout, torch.bfloat16)


@needs_native
def test_dtypes_that_are_not_native_go_to_torch():
    storage, layout = quantized(normal(64, 64), 8)
    x = normal(3, 64, dtype=torch.float16)
    expected = expansion.quantized_linear(x, storage, layout, None)
    assert torch.equal(quantized_native.quantized_linear(x, storage, layout, None), expected)
