"""IntegerRows: rows of integers and scales, which a quantized matrix stores unchanged."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.ops.quantized.weight import (
    BLOCK_INPUTS,
    GROUP_INPUTS,
    QuantizedLayout,
    bytes_view,
    digits_view,
    group_scales_view,
    place,
    row_scales_view,
)
from lullm.units import cdiv


@dataclass(frozen=True, slots=True, eq=False)
class IntegerRows:
    """Rows of a matrix: integer x scale of its group of 16 inputs x scale of its row.

    Args:
        integers: int8 `[n, in]`; -8..7 for storage in 4 bits.
        row_scales: float32 `[n]`.
        group_scales: int8 `[n, ceil(in / 16)]`, -15..15; None: all are 1.
    """

    integers: Tensor
    row_scales: Tensor
    group_scales: Tensor | None = None

    def __len__(self) -> int:
        return len(self.integers)

    def __getitem__(self, rows: slice) -> "IntegerRows":
        groups = None if self.group_scales is None else self.group_scales[rows]
        return IntegerRows(self.integers[rows], self.row_scales[rows], groups)

    def columns(self, first: int, num: int) -> "IntegerRows":
        """The rows for some of the inputs. Raises ValueError: the range cuts a group."""
        if self.group_scales is None:
            return replace(self, integers=self.integers[:, first : first + num])
        if (first or num < self.integers.shape[1]) and (first % GROUP_INPUTS or num % GROUP_INPUTS):
            raise ValueError(f"inputs {first} to {first + num} cut one of its groups of {GROUP_INPUTS}")
        groups = self.group_scales[:, first // GROUP_INPUTS : cdiv(first + num, GROUP_INPUTS)]
        return replace(self, integers=self.integers[:, first : first + num], group_scales=groups)

    def scaled(self, factor: float) -> "IntegerRows":
        """The rows times a factor."""
        return self if factor == 1.0 else replace(self, row_scales=self.row_scales * factor)


def store_rows_(storage: Tensor, layout: QuantizedLayout, first_row: int, rows: IntegerRows) -> None:
    """Store the rows from `first_row` on, exactly. With 8 bits, group scales are multiplied in."""
    at = place(torch.arange(first_row, first_row + len(rows), device=storage.device))
    padding = layout.num_blocks * BLOCK_INPUTS - layout.in_features
    integers, groups = torch.nn.functional.pad(rows.integers, (0, padding)), rows.group_scales
    num_groups = layout.num_blocks * BLOCK_INPUTS // GROUP_INPUTS
    if groups is not None:
        groups = torch.nn.functional.pad(groups, (0, num_groups - groups.shape[1]))
    row_scales_view(storage)[at] = rows.row_scales.float()
    if layout.bits == 8:
        if groups is not None:
            integers = (integers.unflatten(1, (-1, GROUP_INPUTS)) * groups.unsqueeze(-1)).flatten(1)
        bytes_view(storage, layout)[at] = integers.view(torch.uint8).view(len(rows), layout.num_blocks, 16, 4)
        return
    if groups is None:
        groups = torch.ones((len(rows), num_groups), dtype=torch.int8)
    biased = (integers + 8).view(torch.uint8).view(len(rows), layout.num_blocks, 8, 8)
    digits_view(storage, layout)[at] = biased[..., :4] | biased[..., 4:] << 4
    group_scales_view(storage, layout)[at] = groups.view(torch.uint8).view(len(rows), layout.num_blocks, -1)


def rows_of_storage(storage: Tensor, layout: QuantizedLayout) -> IntegerRows:
    """All rows of a matrix, unchanged."""
    at = place(torch.arange(layout.out_features, device=storage.device))
    scales = row_scales_view(storage)[at]
    if layout.bits == 8:
        integers = bytes_view(storage, layout)[at].view(torch.int8).flatten(1)
        return IntegerRows(integers[:, : layout.in_features], scales)
    pairs = digits_view(storage, layout)[at]  # [n, blocks, 8 lines, 4]
    digits = (torch.cat((pairs & 15, pairs >> 4), dim=-1).flatten(1).view(torch.int8) - 8)[:, : layout.in_features]
    groups = group_scales_view(storage, layout)[at].view(torch.int8).flatten(1)
    return IntegerRows(digits, scales, groups[:, : -(-layout.in_features // GROUP_INPUTS)])
