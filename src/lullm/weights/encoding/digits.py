"""DigitTensor: a matrix of lullm's own 4-bit files: digits, a scale per 16 inputs, and a scale per row."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.ops.quantized.weight import GROUP_INPUTS, LARGEST_GROUP_SCALE
from lullm.units import cdiv
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.integer import check, stated_shape, unpack_bytes

SUFFIXES = (".weight_digits", ".weight_group_scale", ".weight_scale")


@dataclass(frozen=True, slots=True, eq=False)
class DigitTensor(EncodedTensor):
    """A matrix `[out, in]`, in float32: (digit - 8) x group scale x row scale.

    Args:
        digits: uint8 `[n, ceil(in / 2)]`, two to a byte, the first in the low bits.
        group_scales: int8 `[n, ceil(in / 16)]`. row_scales: float32 `[n]`.
    """

    digits: Tensor
    group_scales: Tensor
    row_scales: Tensor
    num_inputs: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.digits), self.num_inputs))

    def split(self, num_rows: int) -> "list[DigitTensor]":
        pieces = (each.split(num_rows) for each in (self.digits, self.group_scales, self.row_scales))
        return [
            replace(self, digits=digits, group_scales=groups, row_scales=scales)
            for digits, groups, scales in zip(*pieces, strict=True)
        ]

    def decode(self) -> Tensor:
        rows = self._rows()
        scales = self.group_scales.repeat_interleave(GROUP_INPUTS, 1)[:, : self.num_inputs]
        return rows.integers.float() * scales * self.row_scales.unsqueeze(1)

    @property
    def native_formats(self) -> tuple[int, ...]:
        """4 bits; or 8, with digits times group scales as bytes."""
        return 4, 8

    def rows(self, number: int) -> IntegerRows | None:
        if number in self.native_formats:
            return self._rows()
        return None

    def _rows(self) -> IntegerRows:
        digits = (unpack_bytes(self.digits, 4)[:, : self.num_inputs] - 8).view(torch.int8)
        return IntegerRows(digits, self.row_scales, self.group_scales)


def encode_digits(name: str, parts: Mapping[str, Tensor]) -> DigitTensor:
    """The matrix of these parts. Raises ModelLoadError: a part is missing, or they do not fit together."""
    for suffix in (*SUFFIXES, ".weight_shape"):
        check(name, suffix in parts, f"missing tensor {name.removesuffix('.weight')}{suffix}")
    digits, groups, scales = (parts[suffix] for suffix in SUFFIXES)
    num_rows, num_inputs = stated_shape(name, parts[".weight_shape"])
    is_right = (
        (digits.dtype, groups.dtype, scales.dtype) == (torch.uint8, torch.int8, torch.float32)
        and digits.shape == (num_rows, cdiv(num_inputs, 2))
        and groups.shape == (num_rows, cdiv(num_inputs, GROUP_INPUTS))
        and scales.shape == (num_rows, 1)
        and bool((groups.abs() <= LARGEST_GROUP_SCALE).all() & scales.isfinite().all())
    )
    check(name, is_right, "its digits and scales do not make a matrix of 4 bits")
    return DigitTensor(digits, groups, scales.squeeze(1), num_inputs)
