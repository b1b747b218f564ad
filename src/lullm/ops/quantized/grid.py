"""Grids: weights with a scale per group of 16 or 32 inputs, as in GGUF, AWQ and GPTQ files.

A weight is `digit * scale - minimum`. A group's scale is a float16. In grids with codes, scale and minimum are each a
small integer (the code) times a float16 of the whole span of 256 inputs. Without codes a minimum is a float16, or a
zero point times the scale. The storage is uint8 `[num_panels, panel_bytes]`, in panels of 32 rows and blocks of 64
inputs as for other quantized weights (`weight.py`); `ops/cpu/csrc/grid.h` draws the bytes.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lullm.ops.quantized.weight import BLOCK_INPUTS, PANEL_ROWS, ByRow, place
from lullm.units import cdiv

_SPAN_BLOCKS = 4
_BIAS = 8  # of digits of four bits that have a sign


@dataclass(frozen=True, slots=True, eq=False)
class GridRows:
    """Rows of a matrix, in their parts. A row has G groups, and S spans that share a float16.

    Args:
        digits: `[n, in]` int8; or uint8, without a sign.
        factors: `[n, S]` float16. codes: `[n, G]` int8, factors on them; None: a group is a span.
        min_factors, min_codes: the same for the minimums; None: no minimums. Codes are uint8. In grids of zero points
            they multiply `factors`.
    """

    digits: Tensor
    factors: Tensor
    codes: Tensor | None = None
    min_factors: Tensor | None = None
    min_codes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.digits)

    def __getitem__(self, rows: slice | int) -> "GridRows":
        """Some of the rows; or, of several matrices `[N, n, ...]`, one."""
        parts = (self.digits, self.factors, self.codes, self.min_factors, self.min_codes)
        digits, factors, *others = (None if part is None else part[rows] for part in parts)
        assert digits is not None and factors is not None
        return GridRows(digits, factors, *others)

    def columns(self, first: int, num: int) -> "GridRows":
        """The rows for some of the inputs. Raises ValueError: the range cuts a group, or a span."""
        num_inputs = self.digits.shape[1]

        def part(of: Tensor | None) -> Tensor | None:
            if of is None:
                return None
            size = num_inputs // of.shape[1]
            if first % size or num % size:
                raise ValueError(f"inputs {first} to {first + num} cut one of its groups of {size}")
            return of[:, first // size : (first + num) // size].contiguous()

        factors = part(self.factors)
        assert factors is not None
        digits = self.digits[:, first : first + num].contiguous()
        return GridRows(digits, factors, part(self.codes), part(self.min_factors), part(self.min_codes))

    def decode(self) -> Tensor:
        """Float32 `[n, in]`; the same bits as ggml's."""
        scales = _per_group(self.factors, self.codes)
        values = self.digits.float().unflatten(1, (scales.shape[1], -1)) * scales[..., None]
        if self.min_factors is not None:
            values -= _per_group(self.min_factors, self.min_codes)[..., None]
        return values.flatten(1)


def _per_group(factors: Tensor, codes: Tensor | None) -> Tensor:  # float32 [n, G]
    if codes is None:
        return factors.float()
    return (codes.float().unflatten(1, (factors.shape[1], -1)) * factors.float()[..., None]).flatten(1)


@dataclass(frozen=True)
class Grid:
    """One kind of groups.

    Args:
        number: in the native library (`kGrids` in `grid.h`).
        digit_bits: 8, signed; or 4, signed if `has_sign`.
        min_bytes: of a group's minimum. 0: none; 1: a code or a zero point; 2: a float16.
    """

    number: int
    digit_bits: int
    group_inputs: int
    has_codes: bool
    min_bytes: int
    has_sign: bool = True

    @property
    def num_groups(self) -> int:
        """Groups of a block."""
        return BLOCK_INPUTS // self.group_inputs

    @property
    def digit_bytes(self) -> int:
        """Bytes of a block's digits. The properties below are of a block, too."""
        return PANEL_ROWS * BLOCK_INPUTS * self.digit_bits // 8

    @property
    def scale_bytes(self) -> int:
        return self.num_groups * PANEL_ROWS * (1 if self.has_codes else 2)

    @property
    def block_bytes(self) -> int:
        return self.digit_bytes + self.scale_bytes + self.num_groups * PANEL_ROWS * self.min_bytes

    @property
    def span_bytes(self) -> int:
        """Bytes of the float16 numbers of a span of four blocks."""
        return PANEL_ROWS * 2 * (2 if self.min_bytes else 1) if self.has_codes else 0


Q4_0 = Grid(16, 4, 32, has_codes=False, min_bytes=0)
Q8_0 = Grid(17, 8, 32, has_codes=False, min_bytes=0)
Q4_K = Grid(18, 4, 32, has_codes=True, min_bytes=1, has_sign=False)
Q5_K = Grid(19, 8, 32, has_codes=True, min_bytes=1)
Q6_K = Grid(20, 8, 16, has_codes=True, min_bytes=0)
ANY_K = Grid(21, 8, 16, has_codes=True, min_bytes=1)
"""Holds rows of Q4_K, Q5_K and Q6_K together."""
ZERO_POINTS = Grid(22, 4, 32, has_codes=False, min_bytes=1, has_sign=False)
"""For AWQ and GPTQ: (digit - zero point) * scale."""
Q4_1 = Grid(23, 4, 32, has_codes=False, min_bytes=2, has_sign=False)
ANY_32 = Grid(24, 8, 32, has_codes=False, min_bytes=2)
"""Holds rows of Q5_1 and of all other blocks of 32 together."""
GRIDS = (Q4_0, Q8_0, Q4_K, Q5_K, Q6_K, ANY_K, ZERO_POINTS, Q4_1, ANY_32)


@dataclass(frozen=True)
class GridLayout:
    """The storage of a matrix `[out_features, in_features]` of a grid. See `weight.Layout`."""

    grid: Grid
    out_features: int
    in_features: int

    @property
    def format(self) -> int:
        return self.grid.number

    @cached_property
    def num_blocks(self) -> int:
        return cdiv(self.in_features, BLOCK_INPUTS)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the storage, in bytes."""
        num_spans = cdiv(self.num_blocks, _SPAN_BLOCKS)
        panel_bytes = self.num_blocks * self.grid.block_bytes + num_spans * self.grid.span_bytes
        return cdiv(self.out_features, PANEL_ROWS), panel_bytes

    def decode_rows(self, storage: Tensor, row_ids: Tensor) -> Tensor:
        """The rows `row_ids [n]` as float32 `[n, in]`."""
        return self.rows(storage, row_ids).decode()[:, : self.in_features]

    def with_rows(self, num_rows: int) -> "GridLayout":
        """See `weight.Layout`."""
        return replace(self, out_features=num_rows)

    def rows(self, storage: Tensor, row_ids: Tensor) -> GridRows:
        """The stored rows, padded to whole blocks."""
        grid, parts, at = self.grid, _Parts(storage, self), place(row_ids)
        lines = parts.digits[at].unsqueeze(-1).view(torch.uint8)
        if grid.digit_bits == 4:
            lines = torch.cat((lines & 15, lines >> 4), dim=-1)
        digits = lines.flatten(1).view(torch.int8) - (_BIAS if grid.digit_bits == 4 and grid.has_sign else 0)
        if not grid.has_codes:
            scales = parts.scales[at].flatten(1)
            if not grid.min_bytes:
                return GridRows(digits, scales)
            mins = parts.mins[at].flatten(1)
            return GridRows(digits, scales, None, *((mins,) if grid.min_bytes == 2 else (scales, mins)))
        # The last span may have fewer blocks: pad its codes.
        fill = (-self.num_blocks % _SPAN_BLOCKS) * grid.num_groups
        digits = torch.nn.functional.pad(digits, (0, fill * grid.group_inputs))
        codes = torch.nn.functional.pad(parts.scales[at].flatten(1), (0, fill))
        factors = parts.factors[at]
        if not grid.min_bytes:
            return GridRows(digits, factors[..., 0], codes)
        mins = torch.nn.functional.pad(parts.mins[at].flatten(1), (0, fill))
        return GridRows(digits, factors[..., 0], codes, factors[..., 1], mins)

    def store_(self, storage: Tensor, first_row: int, rows: GridRows) -> None:
        """Store the rows from `first_row` on, exactly; their groups may be larger than the grid's."""
        grid, parts, count = self.grid, _Parts(storage, self), len(rows)
        at = place(torch.arange(first_row, first_row + count, device=storage.device))
        digits = rows.digits.view(torch.int8)
        if grid.digit_bits == 4:
            biased = (_padded(digits, self.num_blocks) + (_BIAS if grid.has_sign else 0)).view(torch.uint8)
            biased = biased.view(count, self.num_blocks, 8, 8)
            lines = biased[..., :4] | biased[..., 4:] << 4
        else:
            lines = _padded(digits, self.num_blocks).view(torch.uint8).view(count, self.num_blocks, 16, 4)
        parts.digits[at] = lines.contiguous().view(torch.int32).squeeze(-1)
        if not grid.has_codes:
            parts.scales[at] = _grouped(rows.factors, self).view(count, self.num_blocks, -1)
            mins = mins_without_codes(rows, grid)
            if mins is not None:
                parts.mins[at] = _grouped(mins, self).view(count, self.num_blocks, -1)
            return
        assert rows.codes is not None
        parts.scales[at] = _grouped(rows.codes, self).view(count, self.num_blocks, -1)
        factors = [rows.factors]
        if grid.min_bytes:
            mins, min_factors = rows.min_codes, rows.min_factors
            if mins is None or min_factors is None:
                mins, min_factors = torch.zeros_like(rows.codes, dtype=torch.uint8), torch.zeros_like(rows.factors)
            parts.mins[at] = _grouped(mins, self).view(count, self.num_blocks, -1)
            factors.append(min_factors)
        parts.factors[at] = torch.stack(factors, dim=-1)


def mins_without_codes(rows: GridRows, grid: Grid) -> Tensor | None:
    """The rows' minimums as a `grid` without codes stores them: zero points, or float16."""
    if grid.min_bytes == 1:
        assert rows.min_codes is not None, "of a grid of zero points"
        return rows.min_codes
    if grid.min_bytes == 2:
        return torch.zeros_like(rows.factors) if rows.min_factors is None else rows.min_factors
    return None


def store_groups_(storage: Tensor, layout: GridLayout, first_row: int, rows: GridRows) -> None:
    """Store the rows from `first_row` on, exactly; see `GridLayout.store_`."""
    layout.store_(storage, first_row, rows)


class _Parts:
    """Views of a storage, by row."""

    def __init__(self, storage: Tensor, layout: GridLayout):
        grid, num_blocks = layout.grid, layout.num_blocks
        all_bytes = num_blocks * grid.block_bytes
        blocks = storage[:, :all_bytes].unflatten(1, (num_blocks, grid.block_bytes))
        ends = grid.digit_bytes, grid.digit_bytes + grid.scale_bytes
        lines = grid.digit_bytes // (2 * 16 * 4)
        # Four bytes at a time: [panels, 2, 16, blocks, lines]
        self.digits = ByRow(
            blocks[:, :, : ends[0]].view(torch.int32).unflatten(2, (2, lines, 16)).permute(0, 2, 4, 1, 3)
        )
        scales = blocks[:, :, ends[0] : ends[1]].view(torch.int8 if grid.has_codes else torch.float16)
        self.scales = scales.unflatten(2, (-1, PANEL_ROWS)).permute(0, 3, 1, 2)  # [panels, 32, blocks, groups]
        mins = blocks[:, :, ends[1] :].view(torch.float16 if grid.min_bytes == 2 else torch.uint8)
        self.mins = mins.unflatten(2, (-1, PANEL_ROWS)).permute(0, 3, 1, 2)
        halves = storage[:, all_bytes:].view(torch.float16)
        sides = 2 if grid.min_bytes else 1
        if grid.has_codes:
            # [panels, 32, spans, sides]
            self.factors = halves.unflatten(1, (-1, sides, PANEL_ROWS)).permute(0, 3, 1, 2)


def _padded(digits: Tensor, num_blocks: int) -> Tensor:
    return torch.nn.functional.pad(digits, (0, num_blocks * BLOCK_INPUTS - digits.shape[1]))


def _grouped(codes: Tensor, layout: GridLayout) -> Tensor:
    """The codes of larger groups, repeated for the layout's groups; padded to whole blocks."""
    num_groups = layout.in_features // layout.grid.group_inputs
    codes = codes.repeat_interleave(num_groups // codes.shape[1], dim=1) if codes.shape[1] < num_groups else codes
    return torch.nn.functional.pad(codes, (0, layout.num_blocks * layout.grid.num_groups - codes.shape[1]))
