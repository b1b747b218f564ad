"""Quantized weights: matrices of 8- or 4-bit integers with scales, in the order of the ops' reads.

A weight is an integer times the scale of its row (output). With 8 bits the integer is -127..127. With 4 bits it is a
digit, -8..7, times the scale of its group of 16 inputs, an integer, -15..15. So 4 bits expand to 8 bits exactly, and
the same integer arithmetic multiplies both formats. They take 8 and 4.5 bits a weight, and 4 bytes a row. A group gets
the scale with the least squared error.

The storage is uint8 `[num_panels, panel_bytes]`: 32 rows to a panel, 64 inputs to a block of it; both are padded with
zeros. `ops/cpu/csrc/quantized.h` draws the bytes. All versions of the ops use the same storage. Rows do not depend on
each other, so a part of a fused matrix can be replaced alone.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.units import cdiv

PANEL_ROWS = 32
BLOCK_INPUTS = 64
GROUP_INPUTS = 16
LARGEST_GROUP_SCALE = 15
NUM_TRIED_SCALES = 3
NOT_FINITE = "a weight is not finite (infinite or NaN) and cannot be quantized"
_TILE_ROWS = 16
_SMALLEST = 1e-30  # a row with a smaller largest value is stored as zeros
_SLAB_INPUTS = 1 << 22  # weights computed at a time, to bound the memory beside the storage


class Layout(Protocol):
    """The storage of a quantized matrix: with scales of rows (`QuantizedLayout`) or of groups (`grid`)."""

    @property
    def out_features(self) -> int: ...

    @property
    def in_features(self) -> int: ...

    @property
    def format(self) -> int:
        """Its number in the native library."""
        ...

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the storage, in bytes."""
        ...

    def decode_rows(self, storage: Tensor, row_ids: Tensor) -> Tensor:
        """The rows `row_ids [n]` as float32 `[n, in]`."""
        ...

    def with_rows(self, num_rows: int) -> "Layout":
        """The layout of `num_rows` rows of the matrix, in whole panels."""
        ...


@dataclass(frozen=True)
class QuantizedLayout:
    """The storage of a matrix `[out_features, in_features]` of `bits` (8 or 4). See `Layout`."""

    bits: Literal[8, 4]
    out_features: int
    in_features: int

    @property
    def format(self) -> int:
        return self.bits

    def decode_rows(self, storage: Tensor, row_ids: Tensor) -> Tensor:
        return dequantize_rows(storage, self, row_ids)

    def with_rows(self, num_rows: int) -> "QuantizedLayout":
        return replace(self, out_features=num_rows)

    @cached_property
    def num_panels(self) -> int:
        return cdiv(self.out_features, PANEL_ROWS)

    @cached_property
    def num_blocks(self) -> int:
        return cdiv(self.in_features, BLOCK_INPUTS)

    @cached_property
    def block_bytes(self) -> int:
        integers = PANEL_ROWS * BLOCK_INPUTS * self.bits // 8
        return integers if self.bits == 8 else integers + PANEL_ROWS * BLOCK_INPUTS // GROUP_INPUTS

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the storage, in bytes."""
        return self.num_panels, self.num_blocks * self.block_bytes + PANEL_ROWS * 4


def quantize_rows_(storage: Tensor, layout: QuantizedLayout, first_row: int, rows: Tensor) -> None:
    """Quantize `rows [n, in]` of any floating point type into the rows from `first_row` on.

    Raises:
        ModelLoadError: a value is not finite; nothing was written.
    """
    slabs = rows.split(max(1, _SLAB_INPUTS // layout.in_features))
    if not all(bool(slab.isfinite().all()) for slab in slabs):
        raise ModelLoadError(NOT_FINITE)
    for slab in slabs:
        _quantize_slab(storage, layout, first_row, slab.to(storage.device).float())
        first_row += len(slab)


def dequantize(storage: Tensor, layout: Layout, first_row: int = 0, last_row: int | None = None) -> Tensor:
    """The rows `[first_row, last_row)` as float32 `[n, in]`."""
    last_row = layout.out_features if last_row is None else last_row
    return layout.decode_rows(storage, torch.arange(first_row, last_row, device=storage.device))


def dequantize_rows(storage: Tensor, layout: QuantizedLayout, row_ids: Tensor) -> Tensor:
    """The rows `row_ids [n]` as float32 `[n, in]`."""
    at = place(row_ids)
    if layout.bits == 8:
        integers = bytes_view(storage, layout)[at].view(torch.int8).flatten(1).float()
    else:
        pairs = digits_view(storage, layout)[at]  # [n, blocks, 8 lines, 4]
        digits = torch.cat((pairs & 15, pairs >> 4), dim=-1).flatten(1).float() - 8
        scales = group_scales_view(storage, layout)[at].view(torch.int8).flatten(1).float()  # [n, groups]
        integers = (digits.unflatten(1, (-1, GROUP_INPUTS)) * scales[..., None]).flatten(1)
    return integers[:, : layout.in_features] * row_scales_view(storage)[at][:, None]


def _quantize_slab(storage: Tensor, layout: QuantizedLayout, first_row: int, rows: Tensor) -> None:
    largest = rows.abs().amax(dim=1)  # [n]
    at = place(torch.arange(first_row, first_row + len(rows), device=storage.device))
    rows = torch.nn.functional.pad(rows, (0, layout.num_blocks * BLOCK_INPUTS - layout.in_features))
    is_zero = largest < _SMALLEST
    if layout.bits == 8:
        inverse = torch.full_like(largest, 127).div_(largest)  # `127 / largest` would round twice
        integers = (rows * inverse.masked_fill_(is_zero, 0)[:, None]).round_().to(torch.int8)
        bytes_view(storage, layout)[at] = integers.view(torch.uint8).view(len(rows), layout.num_blocks, 16, 4)
        row_scales_view(storage)[at] = (largest / 127).masked_fill_(is_zero, 0)
        return
    units = (largest / (8 * LARGEST_GROUP_SCALE)).masked_fill_(is_zero, 0)
    digits, scales = _choose_digits(rows.unflatten(1, (-1, GROUP_INPUTS)), units[:, None])
    biased = (digits + 8).to(torch.uint8).view(len(rows), layout.num_blocks, 8, 8)
    digits_view(storage, layout)[at] = biased[..., :4] | biased[..., 4:] << 4
    group_scales_view(storage, layout)[at] = (
        scales.to(torch.int8).view(torch.uint8).view(len(rows), layout.num_blocks, -1)
    )
    row_scales_view(storage)[at] = units


def _choose_digits(groups: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
    """(digits like `groups [n, groups, 16]`, their scales `[n, groups]`), with the least squared error of those tried.

    Digits are -8 to 7, so the sign of the scale decides which side has the longer range.
    """
    reach = groups.abs().amax(dim=-1) / (8 * units)
    widest = reach.nan_to_num_(0.0, 0.0, 0.0).ceil_().clamp_(max=LARGEST_GROUP_SCALE)  # 0: a group of zeros
    best_scales = torch.zeros_like(widest)
    best_digits = torch.zeros_like(groups)
    least = torch.full_like(widest, float("inf"))
    for narrower in range(NUM_TRIED_SCALES):
        for sign in (1, -1):
            scales = (widest - narrower) * sign
            steps = (scales * units)[..., None]
            digits = (groups * (1 / steps)).round_().clamp_(-8, 7)
            error = (groups - digits * steps).square_().sum(dim=-1)
            is_better = (error < least) & (widest > narrower)
            least = torch.where(is_better, error, least)
            best_scales = torch.where(is_better, scales, best_scales)
            best_digits = torch.where(is_better[..., None], digits, best_digits)
    return best_digits, best_scales


def place(row_ids: Tensor) -> tuple[Tensor, Tensor]:
    """(panel, row in the panel) of rows."""
    return row_ids // PANEL_ROWS, row_ids % PANEL_ROWS


class ByRow:
    """A view of storage, indexed by (panel, row in the panel), although a panel's rows lie in two tiles."""

    def __init__(self, view: Tensor):  # [panels, 2, 16, ...]
        self._view = view

    def __getitem__(self, at: tuple[Tensor, Tensor]) -> Tensor:
        return self._view[at[0], at[1] // _TILE_ROWS, at[1] % _TILE_ROWS]

    def __setitem__(self, at: tuple[Tensor, Tensor], value: Tensor) -> None:
        self._view[at[0], at[1] // _TILE_ROWS, at[1] % _TILE_ROWS] = value


def _blocks_view(storage: Tensor, layout: QuantizedLayout) -> Tensor:  # [panels, blocks, block_bytes]
    return storage[:, : layout.num_blocks * layout.block_bytes].unflatten(1, (layout.num_blocks, layout.block_bytes))


def bytes_view(storage: Tensor, layout: QuantizedLayout) -> ByRow:  # [panels, 2, 16, blocks, 16 lines, 4]
    return ByRow(_blocks_view(storage, layout).unflatten(2, (2, 16, _TILE_ROWS, 4)).permute(0, 2, 4, 1, 3, 5))


def digits_view(storage: Tensor, layout: QuantizedLayout) -> ByRow:  # [panels, 2, 16, blocks, 8 lines, 4]
    digits = _blocks_view(storage, layout)[:, :, : PANEL_ROWS * BLOCK_INPUTS // 2]
    return ByRow(digits.unflatten(2, (2, 8, _TILE_ROWS, 4)).permute(0, 2, 4, 1, 3, 5))


def group_scales_view(storage: Tensor, layout: QuantizedLayout) -> Tensor:  # [panels, 32, blocks, 4]
    scales = _blocks_view(storage, layout)[:, :, PANEL_ROWS * BLOCK_INPUTS // 2 :]
    return scales.unflatten(2, (-1, PANEL_ROWS)).permute(0, 3, 1, 2)


def row_scales_view(storage: Tensor) -> Tensor:  # [panels, 32] float32
    return storage[:, -PANEL_ROWS * 4 :].view(torch.float32)
