"""Integers that a checkpoint holds, stored as they are: the extremes of their range, in every instruction set."""

import pytest
import torch

from lullm.ops.cpu import native, quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.quantized.integer_rows import IntegerRows, rows_of_storage, store_rows_
from lullm.ops.quantized.weight import QuantizedLayout, dequantize

LIBRARY = load_library()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 5, 70])
@pytest.mark.skipif(LIBRARY is None, reason=f"no native ops: {absence()}")
def test_the_smallest_byte(dtype, num_rows):
    """-128 is no byte of lullm's own quantizing, and some of int8 checkpoints; with the largest activations, too."""
    layout = QuantizedLayout(8, 64, 4096)
    integers = torch.full((64, 4096), -128, dtype=torch.int8)
    integers[1::2] = torch.randint(-128, 128, (32, 4096), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    store_rows_(storage, layout, 0, IntegerRows(integers, torch.linspace(0.01, 1, 64)))
    x = torch.full((num_rows, 4096), 3.0)
    x[:, 100:] = torch.randn((num_rows, 3996), generator=torch.Generator().manual_seed(1)).clamp(-3, 3)
    x[0] = -3.0
    x = x.to(dtype)
    expected = x.double() @ dequantize(storage, layout).double().T
    bound = 3 / 65534 * dequantize(storage, layout).abs().sum(1) + 1e-6 * expected.abs()
    if dtype == torch.bfloat16:
        bound = bound + 2**-8 * expected.abs()
    for isa in LIBRARY.available_isas:
        assert LIBRARY.handle.lullm_select_isa(isa.encode())
        native.set_num_threads(2)
        found = quantized_native.quantized_linear(x, storage, layout, None)
        assert ((found.double() - expected).abs() <= bound).all(), isa
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("shape", [(37, 100), (96, 128), (1, 3), (70, 61)])
@pytest.mark.skipif(LIBRARY is None, reason=f"no native ops: {absence()}")
def test_native_storing_writes_the_same_bytes(bits, shape):
    """From any row on, in pieces of a panel, with group scales and without; rows before and behind stay."""
    generator = torch.Generator().manual_seed(0)
    half = 2 ** (bits - 1)
    integers = torch.randint(-half, half, shape, generator=generator).to(torch.int8)
    groups = torch.randint(-15, 16, (shape[0], -(-shape[1] // 16)), generator=generator).to(torch.int8)
    for group_scales in (None, groups if bits == 4 else None):
        rows = IntegerRows(integers, torch.rand(shape[0], generator=generator), group_scales)
        layout = QuantizedLayout(bits, shape[0] + 9, shape[1])
        expected = torch.randint(0, 256, layout.shape, generator=generator).to(torch.uint8)
        found = expected.clone()
        for first in range(0, shape[0], 20):
            store_rows_(expected, layout, 5 + first, rows[first : first + 20])
            quantized_native.store_rows_(found, layout, 5 + first, rows[first : first + 20])
        assert torch.equal(found, expected)


@pytest.mark.parametrize("shape", [(37, 100), (64, 128), (1, 3)])
def test_digits_and_group_scales(shape):
    """Into 4 bits, and multiplied into 8: both are the same numbers, and come back as they went in."""
    generator = torch.Generator().manual_seed(0)
    digits = torch.randint(-8, 8, shape, generator=generator).to(torch.int8)
    groups = torch.randint(-15, 16, (shape[0], -(-shape[1] // 16)), generator=generator).to(torch.int8)
    rows = IntegerRows(digits, torch.rand(shape[0], generator=generator), groups)
    integers = digits.int() * groups.int().repeat_interleave(16, 1)[:, : shape[1]]
    for bits in (4, 8):
        layout = QuantizedLayout(bits, shape[0] + 3, shape[1])
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        store_rows_(storage, layout, 3, rows)
        assert torch.equal(dequantize(storage, layout)[3:], integers.float() * rows.row_scales[:, None])
        back = rows_of_storage(storage, layout)[3:]
        assert torch.equal(back.row_scales, rows.row_scales)
        if bits == 4:
            assert torch.equal(back.integers, digits) and torch.equal(back.group_scales, groups)
        else:
            assert torch.equal(back.integers.int(), integers)
