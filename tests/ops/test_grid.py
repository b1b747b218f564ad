"""Grids: matrices that hold a GGUF file's blocks as they are. Storage is exact; linears against the decoded weights.

Bounds: see `test_quantized.py`; here float32 adds up groups of 16 or 32 inputs in order.
"""

import pytest
import torch
from kit.folder.gguf_files import FORMATS, random_blocks
from torch.nn import functional as F

from lullm.config.gguf.format import FORMATS as BLOCK_FORMATS
from lullm.ops.cpu import quantized_native
from lullm.ops.cpu.library import absence, load_library
from lullm.ops.quantized import expansion, grid, reference
from lullm.ops.quantized.grid import GridLayout, GridRows
from lullm.weights.gguf.blocks import take_apart

LIBRARY = load_library()
ISAS = LIBRARY.available_isas if LIBRARY else ()
needs_native = pytest.mark.skipif(LIBRARY is None, reason=f"no native ops: {absence()}")
ZERO_POINTS = "zero points"
HELD = {
    "Q4_0": (grid.Q4_0, FORMATS.Q4_0),
    "Q8_0": (grid.Q8_0, FORMATS.Q8_0),
    "Q4_K": (grid.Q4_K, FORMATS.Q4_K),
    "Q5_K": (grid.Q5_K, FORMATS.Q5_K),
    "Q6_K": (grid.Q6_K, FORMATS.Q6_K),
    "Q4_K among K": (grid.ANY_K, FORMATS.Q4_K),
    "Q5_K among K": (grid.ANY_K, FORMATS.Q5_K),
    "Q6_K among K": (grid.ANY_K, FORMATS.Q6_K),
    "Q4_0 beside Q8_0": (grid.Q8_0, FORMATS.Q4_0),
    "IQ4_NL": (grid.Q8_0, FORMATS.IQ4_NL),
    "IQ4_XS": (grid.Q6_K, FORMATS.IQ4_XS),
    "IQ4_XS among K": (grid.ANY_K, FORMATS.IQ4_XS),
    "Q2_K": (grid.ANY_K, FORMATS.Q2_K),
    "Q3_K": (grid.Q6_K, FORMATS.Q3_K),
    "zero points": (grid.ZERO_POINTS, ZERO_POINTS),
    "Q4_1": (grid.Q4_1, FORMATS.Q4_1),
    "Q5_1": (grid.ANY_32, FORMATS.Q5_1),
    "Q4_1 beside Q5_1": (grid.ANY_32, FORMATS.Q4_1),
    "Q8_0 beside Q5_1": (grid.ANY_32, FORMATS.Q8_0),
}
CASES = pytest.mark.parametrize(("kind", "block"), HELD.values(), ids=HELD.keys())
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


def rows_of(block, num_rows, num_inputs, seed=0):
    if block == ZERO_POINTS:
        generator = torch.Generator().manual_seed(seed)
        digits, zeros = (
            torch.randint(0, 16, (num_rows, n), generator=generator).to(torch.uint8)
            for n in (num_inputs, num_inputs // 32)
        )
        scales = (torch.randn(zeros.shape, generator=generator) * 0.05).half()
        return GridRows(digits, scales, None, scales, zeros)
    raw = torch.from_numpy(random_blocks((num_rows, num_inputs), block, seed=seed))
    return take_apart(BLOCK_FORMATS[block], raw)


def stored(kind, block, num_outputs, num_inputs):
    """(storage, layout, the weight as float32), written in two parts. Blocks of 32 inputs need no whole panel."""
    rows = rows_of(block, num_outputs, num_inputs)
    layout = GridLayout(kind, num_outputs, num_inputs)
    storage = torch.randint(0, 256, layout.shape, dtype=torch.uint8)
    storage[:] = 0
    cut = num_outputs // 3
    layout.store_(storage, 0, rows[:cut])
    layout.store_(storage, cut, rows[cut:])
    return storage, layout, rows.decode()


def normal(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def num_inputs_of(block):
    return 352 if block == ZERO_POINTS else 768 if BLOCK_FORMATS[block].num_values == 256 else 352


@CASES
@needs_native
def test_native_storing_writes_the_same_bytes(kind, block):
    """In pieces of a panel, between rows that stay, with groups that are the grid's and larger ones."""
    num_inputs = num_inputs_of(block)
    rows = rows_of(block, 70, num_inputs)
    layout = GridLayout(kind, 79, num_inputs)
    expected = torch.randint(0, 256, layout.shape, generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    found = expected.clone()
    for first in range(0, 70, 20):
        layout.store_(expected, 5 + first, rows[first : first + 20])
        quantized_native.store_groups_(found, layout, 5 + first, rows[first : first + 20])
    if kind is grid.ZERO_POINTS:
        wide = GridRows(rows.digits, rows.factors[:, :1], None, rows.factors[:, :1], rows.min_codes[:, :1])
        layout.store_(expected, 9, wide)
        quantized_native.store_groups_(found, layout, 9, wide)
    assert torch.equal(found, expected)


@CASES
def test_storage_is_exact(kind, block):
    storage, layout, weight = stored(kind, block, 77, num_inputs_of(block))
    for num_threads in (1,):
        found = layout.decode_rows(storage, torch.arange(77))
        torch.testing.assert_close(found, weight, atol=0, rtol=0), num_threads
    ids = torch.tensor([76, 0, 31, 32, 32])
    torch.testing.assert_close(layout.decode_rows(storage, ids), weight[ids], atol=0, rtol=0)
    x = normal(3, weight.shape[1])
    for ops in (reference, expansion):
        torch.testing.assert_close(
            ops.quantized_linear(x, storage, layout, None), F.linear(x, weight), atol=1e-4, rtol=0
        )


@needs_native
@CASES
@DTYPES
def test_embedding(kind, block, dtype):
    storage, layout, weight = stored(kind, block, 77, num_inputs_of(block))
    ids = torch.tensor([76, 0, 31, 32, 5])
    found = quantized_native.quantized_embedding(ids, storage, layout, dtype)
    torch.testing.assert_close(found, weight[ids].to(dtype), atol=0, rtol=0)


@pytest.mark.pairs
@needs_native
@CASES
@DTYPES
def test_linear(isa, kind, block, dtype):
    """The error bound of 16-bit activations, and the same bits for a row alone, among few, and among many."""
    num_inputs = num_inputs_of(block)
    storage, layout, weight = stored(kind, block, 100, num_inputs)
    bias = normal(100, dtype=dtype, seed=2)
    x = normal(75, num_inputs, dtype=dtype, seed=1)
    exact = F.linear(x.double(), weight.double(), bias.double())
    found = quantized_native.quantized_linear(x, storage, layout, bias)
    size = F.linear(x.abs().double(), weight.abs().double())
    bound = x.abs().amax(1, keepdim=True).double() / 65534 * weight.abs().sum(1).double() + 1e-6 * size + 1e-6
    if dtype == torch.bfloat16:
        bound += exact.abs() * 2**-8
    assert ((found.double() - exact).abs() <= bound).all()
    for count in (1, 2, 3, 5, 8, 17, 40):
        part = quantized_native.quantized_linear(x[7 : 7 + count], storage, layout, bias)
        assert torch.equal(part, found[7 : 7 + count]), count
    logits = quantized_native.quantized_logits(x, storage, layout)
    assert ((logits.double() - (exact - bias.double())).abs() <= bound).all()
    assert torch.equal(quantized_native.quantized_logits(x[4:5], storage, layout), logits[4:5])


@needs_native
@CASES
def test_gates(isa, kind, block):
    num_inputs = num_inputs_of(block)
    storage, layout, weight = stored(kind, block, 128, num_inputs)
    for dtype in (torch.float32, torch.bfloat16):
        x = normal(37, num_inputs, dtype=dtype, seed=1) / 8
        found = quantized_native.quantized_gated_linear(x, storage, layout, None, "silu")
        expected = reference.quantized_gated_linear(x.double(), storage, layout, None, "silu")
        torch.testing.assert_close(found.double(), expected, atol=2e-3, rtol=1e-3 if dtype == torch.float32 else 2e-2)
        for count in (1, 3, 18):
            part = quantized_native.quantized_gated_linear(x[5 : 5 + count], storage, layout, None, "silu")
            assert torch.equal(part, found[5 : 5 + count])


@needs_native
@CASES
def test_every_instruction_set_gives_the_same_bits(kind, block):
    num_inputs = num_inputs_of(block)
    storage, layout, _ = stored(kind, block, 96, num_inputs)
    x = normal(33, num_inputs)
    results = []
    for name in ISAS:
        assert LIBRARY.handle.lullm_select_isa(name.encode())
        results.append(quantized_native.quantized_linear(x, storage, layout, None))
        results.append(quantized_native.quantized_logits(x.bfloat16(), storage, layout))
    LIBRARY.handle.lullm_select_isa(LIBRARY.isa.encode())
    for result in results[2:]:
        assert any(torch.equal(result, first) for first in results[:2])


@needs_native
def test_what_is_not_finite_makes_its_row_nan():
    storage, layout, _ = stored(grid.Q4_K, FORMATS.Q4_K, 64, 256)
    x = normal(20, 256, dtype=torch.bfloat16)
    x[3, 7] = torch.inf
    found = quantized_native.quantized_linear(x, storage, layout, None)
    assert found[3].isnan().all() and found[:3].isfinite().all() and found[4:].isfinite().all()


@needs_native
@pytest.mark.parametrize(
    ("kind", "digit", "code"),
    [(grid.Q4_K, 15, 63), (grid.Q5_K, 31, 63), (grid.Q6_K, -32, -128), (grid.ANY_K, 31, 63), (grid.ANY_K, -32, -128)],
)
def test_the_largest_sums_do_not_overflow(isa, kind, digit, code):
    """Every digit, code and input as large as files have them: a group's sum is up to 2**31, a span's 2**35."""
    groups = 512 // kind.group_inputs
    digits = torch.full((32, 512), digit, dtype=torch.int8)
    factors = torch.full((32, 2), 0.01).half()
    rows = GridRows(
        digits if kind.has_sign else digits.to(torch.uint8),
        factors,
        torch.full((32, groups), code, dtype=torch.int8),
        -3 * factors if kind.min_bytes else None,
        torch.full((32, groups), 63, dtype=torch.uint8) if kind.min_bytes else None,
    )
    layout = GridLayout(kind, 32, 512)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    layout.store_(storage, 0, rows)
    for dtype in (torch.float32, torch.bfloat16):
        for x in (torch.ones(20, 512, dtype=dtype), -torch.ones(1, 512, dtype=dtype)):
            found = quantized_native.quantized_logits(x, storage, layout)
            expected = F.linear(x.double(), rows.decode().double())
            torch.testing.assert_close(found.double(), expected, atol=0, rtol=1e-6)


@needs_native
@pytest.mark.parametrize(
    ("kind", "digit"),
    [
        (grid.Q4_0, -8),
        (grid.Q4_1, 15),
        (grid.ZERO_POINTS, 15),
        (grid.Q8_0, -128),
        (grid.ANY_32, -128),
        (grid.ANY_32, 127),
    ],
)
def test_sums_of_the_largest_digits_are_exact(isa, kind, digit):
    """Tiles add those of 4 bits as floats, up to 2**24; a row alone is added by vectors, as integers."""
    digits = torch.full((32, 128), digit, dtype=torch.int8)
    scales = (torch.rand(32, 4, generator=torch.Generator().manual_seed(3)) + 0.5).half()
    mins = scales if kind.min_bytes else None
    zeros = torch.ones(32, 4, dtype=torch.uint8) if kind is grid.ZERO_POINTS else None
    rows = GridRows(digits if kind.has_sign else digits.to(torch.uint8), scales, None, mins, zeros)
    layout = GridLayout(kind, 32, 128)
    storage = torch.zeros(layout.shape, dtype=torch.uint8)
    layout.store_(storage, 0, rows)
    x = 1 - torch.rand(20, 128, generator=torch.Generator().manual_seed(4)).bfloat16() / 64
    x[0] = 1
    for part in (x, -x):
        found = quantized_native.quantized_logits(part, storage, layout)
        assert all(
            torch.equal(quantized_native.quantized_logits(row[None], storage, layout)[0], found[i])
            for i, row in enumerate(part)
        )
        exact = F.linear(part.double(), rows.decode().double())
        torch.testing.assert_close(found.double(), exact, atol=0, rtol=2e-5)
