"""AffineTensor: matrices of small integers with a scale and an offset per group of inputs, as MLX stores them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from lullm.config.encoding.scheme import AffineScheme, Float4Scheme, Float8Scheme, Scheme
from lullm.ops.quantized import grid
from lullm.ops.quantized.grid import GridRows
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.float4 import encode_float4
from lullm.weights.encoding.float8 import encode_float8
from lullm.weights.encoding.integer import check, unpack_stream

SUFFIXES = (".weight", ".scales", ".biases")


@dataclass(frozen=True, eq=False)
class AffineTensor(EncodedTensor):
    """Matrices `[out, in]`, or several `[N, out, in]`: integer x scale + offset, in float32.

    Args:
        words: uint8 `[..., out, in x bits / 8]`: the rows' integers one after the other, the first in the low bits.
        scales, offsets: `[..., out, groups]`.
    """

    words: Tensor
    scales: Tensor
    offsets: Tensor
    bits: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.words.shape[:-1], self.words.shape[-1] * 8 // self.bits))

    def split(self, num_rows: int) -> "list[AffineTensor]":
        pieces = (part.split(num_rows) for part in (self.words, self.scales, self.offsets))
        return [replace(self, words=words, scales=scales, offsets=offsets)
                for words, scales, offsets in zip(*pieces, strict=True)]  # fmt: skip

    def decode(self) -> Tensor:
        groups = unpack_stream(self.words, self.bits).float().unflatten(-1, (self.scales.shape[-1], -1))
        groups *= self.scales.float().unsqueeze(-1)
        groups += self.offsets.float().unsqueeze(-1)
        return groups.flatten(-2)

    @cached_property
    def native_formats(self) -> tuple[int, ...]:
        """Empty for 8 bits, which are no signed bytes, and for scales or offsets that are no float16."""
        are_exact = all(torch.equal(part.half().float(), part.float()) for part in (self.scales, self.offsets))
        return affine_formats(self.bits) if are_exact else ()

    def rows(self, number: int) -> GridRows | None:
        if number not in self.native_formats:
            return None
        return GridRows(unpack_stream(self.words, self.bits), self.scales.half(), None, -self.offsets.half())


def affine_formats(bits: int) -> tuple[int, ...]:
    """Formats that hold such integers, if their scales and offsets are float16; the smallest first."""
    if bits > 6:
        return ()
    return (grid.Q4_1.number, grid.ANY_32.number) if bits <= 4 else (grid.ANY_32.number,)


def encode_mlx(name: str, parts: Mapping[str, Tensor], scheme: Scheme) -> EncodedTensor:
    """The matrices of these parts. Raises ModelLoadError: one is missing, or they do not fit together."""
    is_affine = isinstance(scheme, AffineScheme)
    for suffix in SUFFIXES if is_affine else SUFFIXES[:2]:
        check(name, suffix in parts, f"missing tensor {name.removesuffix('.weight')}{suffix}")
    words, scales = parts[".weight"], parts[".scales"]
    is_right = words.dtype == torch.uint32 and words.dim() in (2, 3) and words.numel() > 0
    check(name, is_right, f"its integers are {list(words.shape)} of {words.dtype}, not matrices of uint32")
    numbers = words.contiguous().view(torch.uint8)  # little endian
    if isinstance(scheme, AffineScheme):
        return _affine(name, numbers, scales, parts[".biases"], scheme)
    if isinstance(scheme, Float8Scheme):
        values = numbers.view(torch.float8_e4m3fn)
        return encode_float8(name, {".weight": values, ".weight_scale": scales}, scheme)
    assert isinstance(scheme, Float4Scheme), "the config has no others"
    own = {".weight": numbers, ".weight_scale": scales}
    if scheme.group_size == 16:  # scales are numbers of 8 bits; there is none of the whole tensor
        own |= {".weight_scale": scales.view(torch.float8_e4m3fn), ".weight_scale_2": torch.ones(())}
    return encode_float4(name, own, scheme)


def _affine(name: str, numbers: Tensor, scales: Tensor, offsets: Tensor, scheme: AffineScheme) -> AffineTensor:
    num_inputs = numbers.shape[-1] * 8 // scheme.bits
    expected = (*numbers.shape[:-1], num_inputs // scheme.group_size)
    told = f"scales {list(scales.shape)} of {scales.dtype} and offsets {list(offsets.shape)} of {offsets.dtype}"
    fits = num_inputs % scheme.group_size == 0 and numbers.shape[-1] * 8 % scheme.bits == 0
    fits &= scales.shape == offsets.shape == expected and scales.is_floating_point() and offsets.is_floating_point()
    check(name, fits, f"{told} do not fit {scheme.bits} bits in {list(numbers.shape)} bytes and groups of "
          f"{scheme.group_size}")  # fmt: skip
    check(name, bool(scales.float().isfinite().all() & offsets.float().isfinite().all()), "a scale is infinite or NaN")
    return AffineTensor(numbers, scales, offsets, scheme.bits)
