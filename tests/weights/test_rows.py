"""Rows in another order than the checkpoint's, and scaled ones, whole and in pieces, plain and quantized."""

import re

import pytest
import torch

from lullm.ops.quantized.narrow import NarrowLayout
from lullm.ops.quantized.weight import QuantizedLayout
from lullm.ops.selection import TORCH_CPU_OPS
from lullm.weights.rows.cut import Cut, CutRows, Run
from lullm.weights.rows.place import PlainRows, QuantizedRows
from lullm.weights.rows.scale import ScaleRows
from lullm.weights.rows.several import FlatRows, InterleavedRows, StackedRows, TransposedRows, in_order, takes
from lullm.weights.rule import HeadOrder, rotated_first

HEAD_DIM, ROTARY_DIM = 8, 4
ORDER = rotated_first(HEAD_DIM, ROTARY_DIM)


def order(num_heads=None):
    return HeadOrder(re.compile(""), ORDER, num_heads)


def test_the_pairs_that_turn_are_those_of_the_ops():
    """The checkpoint turns (0, 2) and (1, 3); the ops turn (i, i + 4), the first two of them."""
    assert ORDER == (0, 1, 4, 5, 2, 3, 6, 7)
    assert rotated_first(8, 8) == tuple(range(8))


@pytest.mark.parametrize("piece", [1, 3, 8, 24])
@pytest.mark.parametrize("num_heads", [None, 2])
def test_any_piece_goes_where_it_belongs(piece, num_heads):
    values = torch.arange(24.0)[:, None].repeat(1, 2)
    parameter = torch.full((24, 2), torch.nan)
    rows = in_order(PlainRows(parameter), order(num_heads))
    assert rows.fits(values.shape)
    for number, part in enumerate(values.split(piece)):
        rows.write(part, number * piece)
    ordered = [8 * head + row for head in range(3) for row in ORDER]
    expected = ordered if num_heads is None else [*ordered[:16], *range(16, 24)]
    assert parameter[:, 0].tolist() == expected


def test_quantized_rows_in_order_and_scaled():
    values = torch.randn(16, 64, generator=torch.Generator().manual_seed(0))
    layout = QuantizedLayout(8, 16, 64)
    found, expected = (torch.zeros(layout.shape, dtype=torch.uint8) for _ in range(2))
    in_order(QuantizedRows("w", found, layout, TORCH_CPU_OPS, 0, 16, scale=0.5), order()).write(values)
    ordered = values.view(2, 8, 64)[:, list(ORDER)].reshape(16, 64) * 0.5
    QuantizedRows("w", expected, layout, TORCH_CPU_OPS, 0, 16).write(ordered)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("is_e2m1", "group"), [(True, 32), (False, 64), (False, 128)])
def test_numbers_into_a_share_of_the_columns_of_narrow_floats(is_e2m1, group):
    """A trainer pushes floating point numbers into a matrix of which two workers have one half of the inputs each."""
    values = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    whole, share = NarrowLayout(is_e2m1, 32, 256, group), NarrowLayout(is_e2m1, 32, 128, group)
    expected = whole.quantize(values * 0.5).decode()
    for first in (0, 128):
        storage = torch.zeros(share.shape, dtype=torch.uint8)
        rows = QuantizedRows("w", storage, share, TORCH_CPU_OPS, 0, 32, scale=0.5)
        CutRows(rows, Cut(values.shape, 1, (Run(first, 0, 128),))).write(values)
        assert torch.equal(share.decode_rows(storage, torch.arange(32)), expected[:, first : first + 128])


def test_a_scale_is_rounded_once():
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)).bfloat16()
    parameter = torch.zeros(6, 4, dtype=torch.bfloat16)
    PlainRows(parameter, scale=0.22).write(values)
    assert torch.equal(parameter, (values.double() * 0.22).bfloat16())


@pytest.mark.parametrize("piece", [1, 2, 3, 5, 12])
def test_rows_that_take_turns(piece):
    values = torch.arange(12.0)[:, None].repeat(1, 2)
    places = [torch.full((4, 2), torch.nan) for _ in range(3)]
    rows = InterleavedRows(tuple(map(PlainRows, places)))
    assert rows.fits(values.shape) and not rows.fits(torch.Size((4, 2)))
    for number, part in enumerate(values.split(piece)):
        rows.write(part, number * piece)
    assert [place[:, 0].tolist() for place in places] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.parametrize("piece", [1, 2, 3])
def test_a_stack_of_transposed_matrices_that_take_turns(piece):
    values = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))  # [N, in, out]
    gates, ups = torch.full((2, 3, 4, 5), torch.nan)
    pairs = [InterleavedRows((PlainRows(gate), PlainRows(up))) for gate, up in zip(gates, ups, strict=True)]
    rows = StackedRows(dict(enumerate(map(TransposedRows, pairs))), 3)
    assert rows.fits(values.shape) and not rows.fits(torch.Size((2, 5, 8)))
    for number, part in enumerate(values.split(piece)):
        rows.write(part, number * piece)
    assert torch.equal(gates, values[..., ::2].mT) and torch.equal(ups, values[..., 1::2].mT)


@pytest.mark.parametrize("piece", [1, 2, 5])
def test_some_of_a_stack(piece):
    values, own = torch.randn(5, 4, 3), torch.full((2, 4, 3), torch.nan)
    rows = StackedRows({2: PlainRows(own[0]), 4: PlainRows(own[1])}, 5)
    assert rows.fits(values.shape) and not rows.fits(own.shape)
    for number, part in enumerate(values.split(piece)):
        rows.write(part, number * piece)
    assert torch.equal(own, values[2::2])
    assert [takes(rows, number, 1) for number in range(5)] == [False, False, True, False, True]


def test_a_batch_of_one():
    values = torch.arange(6.0).view(3, 2)
    table, vector = torch.full((3, 2), torch.nan), torch.full((6,), torch.nan)
    for rows, shapes in ((FlatRows(PlainRows(table)), [(1, 3, 2)]), (FlatRows(PlainRows(vector)), [(1, 6), (1, 6, 1)])):
        for shape in shapes:
            assert rows.fits(torch.Size(shape))
            rows.write(values.view(shape))
    assert table.tolist() == values.tolist() and vector.tolist() == values.flatten().tolist()
    for shape in ((3, 2), (1, 2, 3), (1, 6), (2, 3, 2), (3, 1, 2)):
        assert not FlatRows(PlainRows(table)).fits(torch.Size(shape))


def test_the_scales_of_some_heads():
    """A worker has two of four heads; a scale for all of them is everybody's."""
    given = torch.full((2, 2), torch.nan)
    rows = ScaleRows("k_scale", given, 2, 4)
    assert rows.fits(torch.Size((4,))) and rows.fits(torch.Size(())) and not rows.fits(torch.Size((2,)))
    rows.write(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert given.tolist() == [[3.0, 4.0], [3.0, 4.0]]
    rows.write(torch.tensor(0.5))
    assert given.tolist() == [[0.5, 0.5], [0.5, 0.5]]
