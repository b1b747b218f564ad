"""MXFP4 (OCP Microscaling Formats 1.0, https://arxiv.org/abs/2310.10537) in the layout of gpt-oss's checkpoints.

32 inputs of a row are 32 numbers of 4 bits (e2m1) and one scale of 8 bits, a power of two (e8m0). bfloat16 and float32
hold every product exactly.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized.narrow import (
    BLOCK_INPUTS,
    LEAST_EXPONENT,
    MAGNITUDES,
    MOST_EXPONENT,
    NarrowRows,
    narrow_format,
)
from lullm.weights.encoding.encoded import EncodedTensor

GROUP_BYTES = 16
"""Bytes of 32 inputs, two to a byte, the first in the low bits."""
_SCALE_BIAS = 127
_NAN_SCALE = 255


@cache
def _tables() -> tuple[Tensor, Tensor]:
    """The two numbers of each byte `[256]`, two bfloat16 as one int32, and the scales `[256]`, bfloat16.

    Looking up one word takes half the time of a row of two numbers.
    """
    numbers = [*MAGNITUDES, *(-magnitude for magnitude in MAGNITUDES)]
    pairs = [(numbers[byte & 15], numbers[byte >> 4]) for byte in range(256)]
    scales = [2.0 ** (exponent - _SCALE_BIAS) for exponent in range(_NAN_SCALE)] + [float("nan")]
    with torch.inference_mode(False):  # the tables outlive the mode of the first call
        return _on_cpu(pairs).view(torch.int32).squeeze(1), _on_cpu(scales)


def _on_cpu(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.bfloat16, device="cpu")


@dataclass(frozen=True, slots=True, eq=False)
class MXFP4Tensor(EncodedTensor):
    """Matrices `[N, in, out]` of bfloat16, held as `parts`: blocks `[N, out, G, 16]`, scales `[N, out, G]`, both uint8.

    G is in / 32.

    Raises:
        ModelLoadError: the two tensors do not fit together.
    """

    name: str
    parts: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        blocks, scales = self.parts
        is_whole = blocks.dim() == 4 and blocks.shape[:3] == scales.shape and blocks.shape[3] == GROUP_BYTES
        if not is_whole or any(part.dtype != torch.uint8 for part in self.parts):
            raise ModelLoadError(
                f"{self.name}: blocks {list(blocks.shape)} of {blocks.dtype} and scales {list(scales.shape)} of "
                f"{scales.dtype} are no MXFP4; blocks are [N, out, G, {GROUP_BYTES}] and scales [N, out, G], of uint8"
            )

    @property
    def shape(self) -> torch.Size:
        num_matrices, num_outputs, num_groups = self.parts[1].shape
        return torch.Size((num_matrices, 2 * GROUP_BYTES * num_groups, num_outputs))

    @property
    def dtype(self) -> torch.dtype:
        return torch.bfloat16

    def split(self, num_rows: int) -> "list[MXFP4Tensor]":
        return [
            MXFP4Tensor(self.name, parts) for parts in zip(*(part.split(num_rows) for part in self.parts), strict=True)
        ]

    def decode(self) -> Tensor:
        blocks, exponents = self.parts
        if (exponents == _NAN_SCALE).any():
            raise ModelLoadError(f"{self.name}: the checkpoint holds a scale that is NaN; fetch it again")
        pairs, scales = _tables()
        words = pairs.index_select(0, blocks.int().flatten())
        values = words.view(torch.bfloat16).view(*exponents.shape, 2 * GROUP_BYTES)  # [N, out, G, 32]
        values *= scales[exponents.int()].unsqueeze(-1)
        return values.flatten(2).transpose(1, 2)

    @property
    def native_formats(self) -> tuple[int, ...]:
        return (narrow_format(True, BLOCK_INPUTS),)

    def rows(self, number: int) -> NarrowRows | None:
        """The rows of several matrices, each by its outputs."""
        if number not in self.native_formats:
            return None
        return narrow_rows(self.name, *self.parts)


def narrow_rows(name: str, blocks: Tensor, exponents: Tensor) -> NarrowRows:
    """The rows of blocks `[..., n, G, 16]` and exponents `[..., n, G]`, both uint8.

    A byte of a block holds two numbers, the first in the low bits.

    Numbers below 2**-122 become zeros. Raises ModelLoadError: a scale is NaN, or cannot be stored.
    """
    if (exponents > MOST_EXPONENT).any():
        raise ModelLoadError(f"{name}: the checkpoint holds a scale that is NaN, or too large; fetch it again")
    is_zero = exponents < LEAST_EXPONENT
    if is_zero.any():
        blocks, exponents = blocks.masked_fill(is_zero.unsqueeze(-1), 0), exponents.clamp(min=LEAST_EXPONENT)
    return NarrowRows(blocks.flatten(-2), exponents.contiguous(), BLOCK_INPUTS)


def encode_mxfp4(name: str, parts: Mapping[str, Tensor]) -> MXFP4Tensor:
    """The matrices of `NAME_blocks` and `NAME_scales`. Raises ModelLoadError: see `MXFP4Tensor`."""
    for suffix in ("_blocks", "_scales"):
        if suffix not in parts:
            raise ModelLoadError(f"missing tensor {name}{suffix}")
    return MXFP4Tensor(name, (parts["_blocks"], parts["_scales"]))
