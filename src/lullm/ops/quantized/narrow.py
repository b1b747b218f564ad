"""Narrow floats: weights of 8 or 4 bits that are floating point numbers, with a scale per group of inputs.

E4M3 (https://arxiv.org/abs/2209.05433) has a float32 scale per row and group. MXFP4 (OCP Microscaling Formats 1.0,
https://arxiv.org/abs/2310.10537) has numbers of 4 bits (e2m1: 1 bit sign, 2 exponent, 1 mantissa) and a power of two
for every 32 of them. A weight is number x scale, rounded to the type of the activations. So the weights equal those of
a checkpoint that is decoded while it is read.

The storage is uint8 `[num_panels, panel_bytes]`; `ops/cpu/csrc/narrow/narrow.h` draws the bytes.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import gcd

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized.weight import PANEL_ROWS, place
from lullm.units import cdiv

BLOCK_INPUTS = 32
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Magnitudes of e2m1 by the low three bits; the fourth bit is the sign."""
LEAST_EXPONENT, MOST_EXPONENT = 2, 240
"""Bounds of a stored scale of MXFP4, with 127 added: within them all products are normal numbers of bfloat16, in
float32 by a factor.
"""
NOT_A_NUMBER = "a weight is NaN and cannot be stored"
_SCALE_BIAS = 127
_LARGEST_E4M3 = 448.0
_TILE_ROWS = 16
_E4M3, _MXFP4 = 32, 33  # in `narrow.h`
_LINES = 4  # of a tile of MXFP4, each of four pairs


@dataclass(frozen=True, slots=True, eq=False)
class NarrowRows:
    """Rows of one or several matrices.

    Args:
        codes: uint8 `[..., n, in]` of e4m3, or `[..., n, in / 2]` of e2m1: two to a byte, the first in the low bits.
        scales: float32 `[..., n, G]` of e4m3, or exponents uint8 `[..., n, in / 32]`, with 127 added.
        group_inputs: inputs that share a scale; the last group may have fewer.
    """

    codes: Tensor
    scales: Tensor
    group_inputs: int

    @property
    def is_e2m1(self) -> bool:
        return self.scales.dtype == torch.uint8

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: int | slice) -> "NarrowRows":
        return replace(self, codes=self.codes[rows], scales=self.scales[rows])

    def columns(self, first: int, num: int) -> "NarrowRows":
        """The rows for some of the inputs. Raises ValueError: the range cuts a block."""
        if first % BLOCK_INPUTS or num % BLOCK_INPUTS:
            raise ValueError(f"inputs {first} to {first + num} cut one of its groups of {BLOCK_INPUTS}")
        size = gcd(self.group_inputs, first) if first + num < self.codes.shape[-1] or first else self.group_inputs
        fine = self.in_groups_of(size)
        groups = fine.scales[..., first // size : cdiv(first + num, size)]
        per_byte = 2 if self.is_e2m1 else 1
        return NarrowRows(self.codes[..., first // per_byte : (first + num) // per_byte], groups, size)

    def in_groups_of(self, size: int) -> "NarrowRows":
        """The same rows with a scale per `size` inputs, a divisor of the groups' size."""
        if size == self.group_inputs:
            return self
        num_inputs = self.codes.shape[-1] * (2 if self.is_e2m1 else 1)
        groups = torch.arange(cdiv(num_inputs, size)) * size // self.group_inputs
        return replace(self, scales=self.scales.index_select(-1, groups), group_inputs=size)

    def scaled(self, factor: float) -> "NarrowRows":
        """The rows times a factor. Raises ValueError: the product is outside the range of scales."""
        if factor != 1.0 and self.is_e2m1:
            raise ValueError(f"powers of two cannot hold a factor of {factor}")
        return self if factor == 1.0 else replace(self, scales=self.scales * factor)

    def decode(self) -> Tensor:
        """Float32 `[..., n, in]`."""
        if self.is_e2m1:
            values = unpack_e2m1(self.codes)
            scales = torch.exp2(self.scales.float() - _SCALE_BIAS)
        else:
            values, scales = self.codes.contiguous().view(torch.float8_e4m3fn).float(), self.scales
        num_inputs, size = values.shape[-1], self.group_inputs
        if num_inputs % size:
            return values * scales.repeat_interleave(size, -1)[..., :num_inputs]
        return (values.unflatten(-1, (-1, size)) * scales.unsqueeze(-1)).flatten(-2)


def unpack_e2m1(codes: Tensor) -> Tensor:
    """The numbers in bytes `[..., n]`, two to a byte, the first in the low bits: float32 `[..., 2 n]`."""
    pairs = _pairs().to(codes.device).index_select(0, codes.flatten().int())
    return pairs.view(*codes.shape, 2).flatten(-2)


@cache
def _pairs() -> Tensor:
    """The two numbers of each byte `[256, 2]`."""
    numbers = [*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)]
    with torch.inference_mode(False):  # the table outlives the mode of the first call
        return torch.tensor([(numbers[byte & 15], numbers[byte >> 4]) for byte in range(256)], device="cpu")


@dataclass(frozen=True)
class NarrowLayout:
    """The storage of a matrix `[out_features, in_features]` of narrow floats. See `weight.Layout`.

    Args:
        group_inputs: inputs that share a scale; a multiple of 32, as `in_features`.
    """

    is_e2m1: bool
    out_features: int
    in_features: int
    group_inputs: int

    @property
    def format(self) -> int:
        return narrow_format(self.is_e2m1, self.group_inputs)

    @cached_property
    def num_blocks(self) -> int:
        return self.in_features // BLOCK_INPUTS

    @cached_property
    def _digit_bytes(self) -> int:
        return PANEL_ROWS * BLOCK_INPUTS // (2 if self.is_e2m1 else 1)

    @cached_property
    def _block_bytes(self) -> int:
        return self._digit_bytes + (PANEL_ROWS if self.is_e2m1 else 0)

    @cached_property
    def num_groups(self) -> int:
        return cdiv(self.in_features, self.group_inputs)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Shape of the storage, in bytes."""
        scale_bytes = 0 if self.is_e2m1 else self.num_groups * PANEL_ROWS * 4
        return cdiv(self.out_features, PANEL_ROWS), self.num_blocks * self._block_bytes + scale_bytes

    def with_rows(self, num_rows: int) -> "NarrowLayout":
        """See `weight.Layout`."""
        return replace(self, out_features=num_rows)

    def decode_rows(self, storage: Tensor, row_ids: Tensor) -> Tensor:
        """The rows `row_ids [n]` as float32 `[n, in]`."""
        panel, row = place(row_ids)
        tile, lane = row // _TILE_ROWS, row % _TILE_ROWS
        if not self.is_e2m1:
            codes = self._pairs_view(storage)[panel, tile, lane].flatten(1)
            scales = self._scales_view(storage)[panel, row]
        else:
            words = self._words_view(storage)[panel, tile, lane]  # [n, blocks, lines, 2] int16
            digits = torch.stack([words.int() >> 4 * pair & 15 for pair in range(4)], dim=3)  # [n, blocks, lines, 4, 2]
            codes = (digits[..., 0] | digits[..., 1] << 4).flatten(1).to(torch.uint8)
            scales = self._scales_view(storage)[panel, row]
        return NarrowRows(codes, scales, self.group_inputs).decode()

    def store_(self, storage: Tensor, first_row: int, rows: NarrowRows) -> None:
        """Store the rows from `first_row` on, exactly; their groups may be larger than the layout's.

        Raises:
            ModelLoadError: a number is NaN.
        """
        panel, row = place(torch.arange(first_row, first_row + len(rows), device=storage.device))
        tile, lane = row // _TILE_ROWS, row % _TILE_ROWS
        rows = rows.in_groups_of(self.group_inputs)
        if not self.is_e2m1:
            if bool((rows.codes & 127 == 127).any()):
                raise ModelLoadError(NOT_A_NUMBER)
            self._pairs_view(storage)[panel, tile, lane] = rows.codes.view(len(rows), self.num_blocks, _TILE_ROWS, 2)
        else:
            pairs = rows.codes.int().view(len(rows), self.num_blocks, _LINES, 4)
            sides = torch.stack((pairs & 15, pairs >> 4), dim=-1)  # [n, blocks, lines, 4, 2]
            words = sum(sides[:, :, :, pair] << 4 * pair for pair in range(4))
            assert isinstance(words, Tensor)
            self._words_view(storage)[panel, tile, lane] = words.to(torch.int16)
        self._scales_view(storage)[panel, row] = rows.scales

    def quantize(self, rows: Tensor) -> NarrowRows:
        """`rows [n, in]` of any floating point type, rounded to the nearest numbers. Scales fit the largest value of
        each group.

        Raises:
            ModelLoadError: a value is not finite.
        """
        values = torch.nn.functional.pad(rows.float(), (0, self.num_groups * self.group_inputs - self.in_features))
        groups = values.unflatten(1, (self.num_groups, -1))
        largest = groups.abs().amax(-1)  # [n, G]
        if not bool(largest.isfinite().all()):
            raise ModelLoadError("a weight is not finite (infinite or NaN) and cannot be quantized")
        if not self.is_e2m1:
            scales = (largest / _LARGEST_E4M3).masked_fill_(largest == 0, 1.0)
            codes = (groups / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).view(torch.uint8).flatten(1)
            return NarrowRows(codes[:, : self.in_features].contiguous(), scales, self.group_inputs)
        exponents = largest.log2().floor().sub_(2).clamp_(LEAST_EXPONENT - _SCALE_BIAS, MOST_EXPONENT - _SCALE_BIAS)
        scaled = torch.ldexp(groups, -exponents.int().unsqueeze(-1))
        digits = torch.bucketize(scaled.abs(), _MIDDLES.to(rows.device)) | (scaled < 0).long() << 3
        sides = digits.flatten(1).to(torch.uint8).unflatten(1, (-1, 2))
        return NarrowRows(sides[..., 0] | sides[..., 1] << 4, (exponents + _SCALE_BIAS).to(torch.uint8), BLOCK_INPUTS)

    def _blocks(self, storage: Tensor) -> Tensor:  # [panels, blocks, block bytes]
        return storage[:, : self.num_blocks * self._block_bytes].unflatten(1, (self.num_blocks, self._block_bytes))

    def _pairs_view(self, storage: Tensor) -> Tensor:  # [panels, 2, 16 rows, blocks, 16 pairs, 2]
        return self._blocks(storage).unflatten(2, (2, 16, _TILE_ROWS, 2)).permute(0, 2, 4, 1, 3, 5)

    def _words_view(self, storage: Tensor) -> Tensor:  # [panels, 2, 16 rows, blocks, lines, 2] int16
        words = self._blocks(storage)[:, :, : self._digit_bytes].view(torch.int16)
        return words.unflatten(2, (2, _LINES, _TILE_ROWS, 2)).permute(0, 2, 4, 1, 3, 5)

    def _scales_view(self, storage: Tensor) -> Tensor:  # [panels, 32, groups]
        if self.is_e2m1:
            return self._blocks(storage)[:, :, self._digit_bytes :].transpose(1, 2)
        scales = storage[:, self.num_blocks * self._block_bytes :].view(torch.float32)
        return scales.unflatten(1, (self.num_groups, PANEL_ROWS)).transpose(1, 2)


_MIDDLES = torch.tensor([(low + high) / 2 for low, high in zip(MAGNITUDES, MAGNITUDES[1:], strict=False)])


def narrow_format(is_e2m1: bool, group_inputs: int) -> int:
    """The number of a format in the native library: its kind, and the blocks that share a scale."""
    return _MXFP4 if is_e2m1 else _E4M3 | group_inputs // BLOCK_INPUTS << 8


def narrow_layout(number: int, out_features: int, in_features: int) -> NarrowLayout | None:
    """The layout of a matrix in the format of this number; None: the format is of another kind."""
    if number == _MXFP4:
        return NarrowLayout(True, out_features, in_features, BLOCK_INPUTS)
    if number & 255 != _E4M3:
        return None
    return NarrowLayout(False, out_features, in_features, (number >> 8) * BLOCK_INPUTS)


def store_narrow_(storage: Tensor, layout: NarrowLayout, first_row: int, rows: NarrowRows) -> None:
    """Store the rows from `first_row` on, exactly; see `NarrowLayout.store_`."""
    layout.store_(storage, first_row, rows)
