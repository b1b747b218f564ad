"""Narrow floats: storage is exact, and linear layers give the bits of a matrix that was decoded while it was loaded."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from lullm.config.layer.experts import ClampedGate
from lullm.errors import ModelLoadError
from lullm.ops.cpu import native, native_experts, quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.ops.quantized import expansion, reference
from lullm.ops.quantized.narrow import MAGNITUDES, NarrowLayout, NarrowRows, narrow_layout

LIBRARY = load_library()
needs_native = pytest.mark.skipif(LIBRARY is None, reason=f"no native ops: {absence()}")
KINDS = {"e4m3 blocks": (False, 128), "e4m3 rows": (False, 352), "mxfp4": (True, 32)}
CASES = pytest.mark.parametrize(("is_e2m1", "group"), KINDS.values(), ids=KINDS.keys())
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def rows_of(is_e2m1, group, num_rows, num_inputs=352, seed=0):
    """All codes that are numbers, with denormals and both zeros; scales of many sizes."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (num_rows, num_inputs // (2 if is_e2m1 else 1)), generator=generator).to(torch.uint8)
    shape = (num_rows, -(-num_inputs // group))
    if is_e2m1:
        return NarrowRows(codes, torch.randint(100, 130, shape, generator=generator).to(torch.uint8), group)
    codes[(codes & 127) == 127] = 0
    return NarrowRows(codes, 0.01 * torch.rand(shape, generator=generator), group)


def stored(is_e2m1, group, num_outputs, seed=0):
    """(storage, layout, the weight as float32)"""
    rows = rows_of(is_e2m1, group, num_outputs, seed=seed)
    layout = NarrowLayout(is_e2m1, num_outputs, 352, group)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    layout.store_(storage, 0, rows[: num_outputs // 3])
    layout.store_(storage, num_outputs // 3, rows[num_outputs // 3 :])
    return storage, layout, rows.decode()


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed(weight):
    weight = weight.clone()
    native.pack_weight_(weight)
    return weight


@needs_native
@CASES
@DTYPES
@pytest.mark.parametrize("num_rows", [1, 5, 20])
def test_every_number_is_rounded_once(is_e2m1, group, dtype, num_rows):
    """Products with rows of one 1 are the weight itself, whatever scale that may be stored."""
    rows = rows_of(is_e2m1, group, 64)
    if is_e2m1:
        rows = replace(rows, scales=torch.randint(2, 241, rows.scales.shape).to(torch.uint8))
    layout = NarrowLayout(is_e2m1, 64, 352, group)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    layout.store_(storage, 0, rows)
    units = torch.eye(352, dtype=dtype)
    found = [quantized_native.quantized_linear(part, storage, layout, None) for part in units.split(num_rows)]
    assert torch.equal(torch.cat(found).T, rows.decode().to(dtype))


def test_numbers():
    """By the definitions."""
    codes = torch.tensor([[0x21, 0xF9]], dtype=torch.uint8)
    rows = NarrowRows(codes.repeat(1, 8), torch.tensor([[130]], dtype=torch.uint8), 32)
    assert rows.decode()[0, :4].tolist() == [8 * 0.5, 8 * 1.0, 8 * -0.5, 8 * -6.0]
    codes = torch.tensor([[0x38, 0x01, 0x7E, 0xC0] * 16], dtype=torch.uint8)
    rows = NarrowRows(codes, torch.tensor([[2.0, 3.0]]), 32)
    assert rows.decode()[0, :4].tolist() == [2.0, 2 * 2**-9, 2 * 448.0, -4.0] and rows.decode()[0, 34] == 3 * 448


@CASES
def test_storage_is_exact(is_e2m1, group):
    storage, layout, weight = stored(is_e2m1, group, 77)
    assert narrow_layout(layout.format, 77, 352) == layout
    assert torch.equal(layout.decode_rows(storage, torch.arange(77)), weight)
    ids = torch.tensor([76, 0, 31, 32, 32])
    assert torch.equal(layout.decode_rows(storage, ids), weight[ids])
    x = normal(3, 352)
    for ops in (reference, expansion):
        found = ops.quantized_linear(x, storage, layout, None)
        torch.testing.assert_close(found, F.linear(x, weight), atol=1e-5 * float(weight.abs().sum(1).max()), rtol=0)


@CASES
def test_columns_and_finer_groups(is_e2m1, group):
    """A worker's share of the inputs, which may begin within a group, but not within a block."""
    rows = rows_of(is_e2m1, group, 40)
    for first, num in ((0, 352), (0, 128), (128, 224), (96, 160), (32, 320)):
        part = rows.columns(first, num)
        assert torch.equal(part.decode(), rows.decode()[:, first : first + num])
        layout = NarrowLayout(is_e2m1, 40, num, 32)
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        layout.store_(storage, 0, part)
        assert torch.equal(layout.decode_rows(storage, torch.arange(40)), part.decode())
    with pytest.raises(ValueError, match="cut one of its groups of 32"):
        rows.columns(16, 32)


@needs_native
@CASES
def test_native_storing_writes_the_same_bytes(is_e2m1, group):
    rows = rows_of(is_e2m1, group, 70)
    layout = NarrowLayout(is_e2m1, 79, 352, group)
    expected = torch.randint(0, 256, layout.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    found = expected.clone()
    for first in range(0, 70, 20):
        layout.store_(expected, 5 + first, rows[first : first + 20])
        quantized_native.store_narrow_(found, layout, 5 + first, rows[first : first + 20])
    assert torch.equal(found, expected)


@needs_native
@CASES
@DTYPES
def test_linear_has_the_bits_of_the_decoded_matrix(isa, is_e2m1, group, dtype):
    storage, layout, weight = stored(is_e2m1, group, 96)
    weight, bias = packed(weight.to(dtype)), normal(96, dtype=dtype, seed=2)
    for count in (1, 2, 5, 17, 40, 75):
        x = normal(count, 352, dtype=dtype, seed=count)
        found = quantized_native.quantized_linear(x, storage, layout, bias)
        assert torch.equal(found, native.linear(x, weight, bias)), count
        assert torch.equal(quantized_native.quantized_logits(x, storage, layout), native.logits(x, weight)), count
    ids = torch.tensor([95, 0, 31])
    found = quantized_native.quantized_embedding(ids, storage, layout, dtype)
    assert torch.equal(found, stored(is_e2m1, group, 96)[2][ids].to(dtype))


@needs_native
@CASES
@DTYPES
def test_outputs_that_fill_no_panel(isa, is_e2m1, group, dtype):
    """Nothing is written beside them; a row has the same bits in any batch."""
    storage, layout, weight = stored(is_e2m1, group, 77)
    bias, x = normal(77, dtype=dtype, seed=2), normal(40, 352, dtype=dtype, seed=1)
    found = quantized_native.quantized_linear(x, storage, layout, bias)
    exact = F.linear(x.double(), weight.to(dtype).double(), bias.double())
    size = F.linear(x.abs().double(), weight.abs().double())
    assert (
        (found.double() - exact).abs() <= 1e-6 * size + exact.abs() * (2**-8 if dtype == torch.bfloat16 else 0)
    ).all()
    for count in (1, 2, 17):
        assert torch.equal(quantized_native.quantized_linear(x[:count], storage, layout, bias), found[:count]), count


@needs_native
@CASES
def test_gates(isa, is_e2m1, group):
    storage, layout, weight = stored(is_e2m1, group, 128)
    weight, bias = packed(weight.bfloat16()), normal(128, dtype=torch.bfloat16, seed=2)
    for count in (1, 20):
        x = normal(count, 352, dtype=torch.bfloat16, seed=1)
        found = quantized_native.quantized_gated_linear(x, storage, layout, bias, "silu")
        assert torch.equal(found, native.gated_linear(x, weight, bias, "silu"))


@needs_native
@CASES
def test_experts(isa, is_e2m1, group):
    """As experts of decoded matrices, those with many rows and with none."""
    ups = [stored(is_e2m1, group, 128, seed=expert) for expert in range(5)]
    downs = []
    for expert in range(5):
        rows = rows_of(is_e2m1, min(group, 64), 352, 64, seed=9 + expert)
        layout = NarrowLayout(is_e2m1, 352, 64, min(group, 64))
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        quantized_native.store_narrow_(storage, layout, 0, rows)
        downs.append((storage, layout, rows.decode()))
    biases = [normal(128, dtype=torch.bfloat16, seed=i) for i in range(5)]
    gate = ClampedGate(1.702, 7.0)
    narrow = ExpertWeights(
        Matrices([s for s, _, _ in ups], biases, [layout for _, layout, _ in ups]),
        Matrices([s for s, _, _ in downs], None, [layout for _, layout, _ in downs]),
        gate, ExpertSlots.in_order(5),
    )  # fmt: skip
    plain = ExpertWeights(
        Matrices([packed(w.bfloat16()) for _, _, w in ups], biases, [None] * 5),
        Matrices([packed(w.bfloat16()) for _, _, w in downs], None, [None] * 5),
        gate, ExpertSlots.in_order(5),
    )  # fmt: skip
    for count in (1, 70):
        x = normal(count, 352, dtype=torch.bfloat16, seed=1)
        chosen = torch.tensor([[0, 3], [0, 1], [0, 4]]).repeat(24, 1)[:count]
        routes = Routes(chosen, torch.full(chosen.shape, 0.5))
        expected = native_experts.experts(x, routes, plain, None, None)
        assert torch.equal(native_experts.experts(x, routes, narrow, None, None), expected)


@CASES
def test_numbers_are_rounded_to_the_nearest(is_e2m1, group):
    """And those that a matrix holds already stay what they are."""
    layout = NarrowLayout(is_e2m1, 40, 352, group)
    values = normal(40, 352)
    values[3, :32] = 0
    rows = layout.quantize(values)
    error = (rows.decode() - values).abs()
    largest = rows.scales.float() if not is_e2m1 else torch.exp2(rows.scales.float() - 127)
    steps = largest.repeat_interleave(group, 1)[:, :352]
    assert (error <= (values.abs() / 16 + steps * 2**-10 if not is_e2m1 else 2 * steps)).all()
    assert not rows.decode()[3, :32].any()
    again = layout.quantize(rows.decode()).decode()
    torch.testing.assert_close(again, rows.decode(), rtol=0 if is_e2m1 else 1e-6, atol=0)
    for bad in (float("nan"), float("inf")):
        values[1, 2] = bad
        with pytest.raises(ModelLoadError, match="not finite"):
            layout.quantize(values)
    assert MAGNITUDES[-1] == 6.0


@needs_native
@pytest.mark.parametrize("store", [NarrowLayout.store_, quantized_native.store_narrow_], ids=["torch", "native"])
def test_nan_is_refused(store):
    rows = rows_of(False, 128, 40)
    rows.codes[7, 300] = 0xFF
    layout = NarrowLayout(False, 40, 352, 128)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    arguments = (layout, storage) if store is NarrowLayout.store_ else (storage, layout)
    with pytest.raises(ModelLoadError, match="a weight is NaN"):
        store(*arguments, 0, rows)
