"""Float8Tensor: a matrix of 8-bit floating point numbers (e4m3) with scales, per tensor, row or block."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from lullm.config.encoding.scheme import Float8Scheme
from lullm.ops.quantized.narrow import BLOCK_INPUTS, NarrowRows, narrow_format, narrow_layout
from lullm.units import cdiv
from lullm.weights.encoding.encoded import RowRange
from lullm.weights.encoding.float4 import exponents
from lullm.weights.encoding.integer import check


@dataclass(frozen=True, eq=False)
class Float8Tensor(RowRange):
    """A matrix `[out, in]`: number x scale of its block, in float32.

    Args:
        values: float8_e4m3fn. scales: `[blocks of rows, blocks of inputs]`. block: (rows, inputs) of a scale.
    """

    values: Tensor
    scales: Tensor
    block: tuple[int, int]

    def decode(self) -> Tensor:
        values, scales, size = self.values[self.first : self.last].float(), self._scales(), self.block[1]
        if self.num_inputs % size:
            return values * scales.index_select(1, torch.arange(self.num_inputs) // size)
        blocks = values.unflatten(1, (-1, size))
        blocks *= scales.unsqueeze(-1)
        return blocks.flatten(1)

    @property
    def native_formats(self) -> tuple[int, ...]:
        """Empty if scales or rows are no whole blocks."""
        return float8_formats(self.num_inputs, self.block[1])

    def rows(self, number: int) -> NarrowRows | None:
        layout = narrow_layout(number, *self.shape)
        if layout is None or layout.is_e2m1:
            return None
        group = min(self.block[1], self.num_inputs)
        return NarrowRows(self.values[self.first : self.last].view(torch.uint8), self._scales(), group)

    def _scales(self) -> Tensor:
        """The scales of these rows."""
        return self.scales.index_select(0, torch.arange(self.first, self.last) // self.block[0])


def float8_formats(num_inputs: int, group_inputs: int | None) -> tuple[int, ...]:
    """Formats that hold rows with a scale per `group_inputs`; None: one scale for all inputs."""
    group = min(group_inputs or num_inputs, num_inputs)
    return () if num_inputs % BLOCK_INPUTS or group % BLOCK_INPUTS else (narrow_format(False, group),)


def encode_float8(name: str, parts: Mapping[str, Tensor], scheme: Float8Scheme) -> Float8Tensor:
    """The matrix of these parts. Raises ModelLoadError: a part is missing, or they do not fit together."""
    stored = [parts[suffix] for suffix in (".weight_scale", ".weight_scale_inv") if suffix in parts]
    check(name, ".weight" in parts and len(stored) == 1, f"{name} and one tensor of its scales are needed")
    values, scales = parts[".weight"], stored[0]
    check(name, values.dtype == torch.float8_e4m3fn and values.dim() == 2 and values.numel() > 0,
          f"its numbers are {list(values.shape)} of {values.dtype}, not a matrix of float8_e4m3fn")  # fmt: skip
    num_rows, num_inputs = values.shape
    block = scheme.block or ((num_rows if scales.numel() == 1 else 1), num_inputs)
    expected = (cdiv(num_rows, block[0]), cdiv(num_inputs, block[1]))
    # A scale may be a power of two in 8 bits, in its own type or as a byte.
    scales = exponents(scales) if scales.dtype == torch.uint8 else scales.float()
    if scheme.block is None and scales.numel() == expected[0]:
        scales = scales.reshape(expected)
    fit = f"scales {list(scales.shape)} do not fit a matrix {list(values.shape)} in blocks of {list(block)}"
    check(name, tuple(scales.shape) == expected, fit)
    check(name, bool(scales.isfinite().all()), "a scale is infinite or NaN")
    return Float8Tensor(0, num_rows, num_inputs, values, scales, block)
