"""Float4Tensor: a matrix of 4-bit floating point numbers (e2m1) with scales of groups: MXFP4 and NVFP4."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.config.encoding.scheme import Float4Scheme
from lullm.ops.quantized.narrow import BLOCK_INPUTS, NarrowRows, narrow_format, unpack_e2m1
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.integer import check
from lullm.weights.encoding.mxfp4 import narrow_rows

_WORDS = (".weight_packed", ".weight")
_DIVISOR, _FACTOR = ".weight_global_scale", ".weight_scale_2"
"""Names of the tensor's scale: group scales are divided by that of compressed-tensors, and multiplied by ModelOpt's."""
_NAN_EXPONENT = 255


@dataclass(frozen=True, slots=True, eq=False)
class Float4Tensor(EncodedTensor):
    """A matrix `[out, in]`: number x scale of its group x `factor`, in float32.

    Args:
        codes: uint8 `[n, in / 2]`, two numbers to a byte, the first in the low bits.
        scales: `[n, in / group]`: exponents, uint8 with 127 added, or float8_e4m3fn.
    """

    name: str
    codes: Tensor
    scales: Tensor
    factor: float

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.codes), 2 * self.codes.shape[1]))

    def split(self, num_rows: int) -> "list[Float4Tensor]":
        pieces = zip(self.codes.split(num_rows), self.scales.split(num_rows), strict=True)
        return [replace(self, codes=codes, scales=scales) for codes, scales in pieces]

    def decode(self) -> Tensor:
        scales = exponents(self.scales) if self.scales.dtype == torch.uint8 else self.scales.float() * self.factor
        values = unpack_e2m1(self.codes).unflatten(1, (scales.shape[1], -1))
        values *= scales.unsqueeze(-1)
        return values.flatten(1)

    @property
    def native_formats(self) -> tuple[int, ...]:
        return float4_formats(Float4Scheme(32 if self.scales.dtype == torch.uint8 else 16), self.shape[1])

    def rows(self, number: int) -> NarrowRows | None:
        if number not in self.native_formats:
            return None
        return narrow_rows(self.name, self.codes.unflatten(1, (self.scales.shape[1], -1)), self.scales)


def float4_formats(scheme: Float4Scheme, num_inputs: int) -> tuple[int, ...]:
    """Formats that hold such rows, if their scales are powers of two."""
    is_whole = scheme.group_size == BLOCK_INPUTS and num_inputs % BLOCK_INPUTS == 0
    return (narrow_format(True, BLOCK_INPUTS),) if is_whole else ()


def exponents(stored: Tensor) -> Tensor:
    """The powers of two, float32, of exponents with 127 added."""
    return torch.exp2(stored.float() - 127)


def encode_float4(name: str, parts: Mapping[str, Tensor], scheme: Float4Scheme) -> Float4Tensor:
    """The matrix of these parts. Raises ModelLoadError: a part is missing, or they do not fit together."""
    words = [parts[suffix] for suffix in _WORDS if suffix in parts]
    check(name, len(words) == 1 and ".weight_scale" in parts, f"{name} and its weight_scale are needed")
    codes, scales = words[0], parts[".weight_scale"]
    check(name, codes.dtype == torch.uint8 and codes.dim() == 2 and codes.numel() > 0,
          f"its numbers are {list(codes.shape)} of {codes.dtype}, not a matrix of bytes")  # fmt: skip
    has_powers = scheme.group_size == BLOCK_INPUTS
    own = torch.uint8 if has_powers else torch.float8_e4m3fn
    expected = (len(codes), 2 * codes.shape[1] // scheme.group_size)
    fits = scales.dtype == own and scales.shape == expected and 2 * codes.shape[1] % scheme.group_size == 0
    told = f"scales {list(scales.shape)} of {scales.dtype} do not fit {list(codes.shape)} bytes"
    check(name, fits, f"{told} in groups of {scheme.group_size}, which have scales of {own}")
    is_number = scales != _NAN_EXPONENT if has_powers else scales.float().isfinite()
    check(name, bool(is_number.all()), "a scale is NaN")
    return Float4Tensor(name, codes, scales, _factor(name, parts, has_powers))


def _factor(name: str, parts: Mapping[str, Tensor], has_powers: bool) -> float:
    stated = [suffix for suffix in (_DIVISOR, _FACTOR) if suffix in parts]
    check(name, len(stated) == (0 if has_powers else 1), "it has none or several scales of the whole tensor")
    if has_powers:
        return 1.0
    value = parts[stated[0]]
    is_scale = value.numel() == 1 and value.is_floating_point() and 0 < float(value) < float("inf")
    check(name, is_scale, f"its scale {list(value.shape)} of {value.dtype} is no positive number")
    return 1 / float(value) if stated[0] == _DIVISOR else float(value)
