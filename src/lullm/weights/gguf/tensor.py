"""GGUFTensor: one tensor of a GGUF file, mapped, and decoded piece by piece while it is written."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.config.gguf.format import BlockFormat
from lullm.ops.quantized import grid
from lullm.ops.quantized.narrow import BLOCK_INPUTS, narrow_format
from lullm.ops.quantized.stored import StoredRows
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.mxfp4 import narrow_rows
from lullm.weights.gguf.blocks import decode_rows, narrow_blocks, take_apart


@dataclass(frozen=True, slots=True, eq=False)
class GGUFTensor(EncodedTensor):
    """Rows `raw [rows, row_bytes]` uint8 of a tensor of this shape.

    Args:
        sizes: of the decoded values, by dimension; `split` divides the first.
    """

    raw: Tensor
    block: BlockFormat
    sizes: torch.Size

    @property
    def shape(self) -> torch.Size:
        return self.sizes

    def split(self, num_rows: int) -> "list[GGUFTensor]":
        rows_of_one = len(self.raw) * num_rows // len(self)  # a vector is one row, and is not split
        if len(self.shape) == 1:
            return [self]
        return [
            replace(self, raw=raw, sizes=torch.Size((len(raw) * len(self) // len(self.raw), *self.shape[1:])))
            for raw in self.raw.split(rows_of_one)
        ]

    def slices(self) -> "list[GGUFTensor]":
        """The matrices of a tensor that stacks several."""
        return [replace(self, raw=raw, sizes=self.shape[1:]) for raw in self.raw.chunk(len(self))]

    def with_halves_apart(self, num_heads: int) -> "GGUFTensor":
        """The rows of every head, reordered from rotated pairs (2 i, 2 i + 1) to pairs (i, i + D / 2)."""
        heads = self.raw.unflatten(0, (num_heads, -1, 2)).transpose(1, 2)
        return replace(self, raw=heads.reshape(self.raw.shape))

    def decode(self) -> Tensor:
        return decode_rows(self.block, self.raw).view(self.shape)

    @property
    def native_formats(self) -> tuple[int, ...]:
        return NATIVE.get(self.block.name, ())

    def rows(self, number: int) -> StoredRows | None:
        """The parts of the blocks, for a matrix that stores them."""
        if number not in self.native_formats:
            return None
        if self.block.name == "MXFP4":
            return narrow_rows("a tensor of MXFP4", *narrow_blocks(self.raw))
        return take_apart(self.block, self.raw)


_4, _8, _ANY_32, _ANY = grid.Q4_0.number, grid.Q8_0.number, grid.ANY_32.number, grid.ANY_K.number
NATIVE = {
    "Q4_0": (_4, _8, _ANY_32), "Q4_1": (grid.Q4_1.number, _ANY_32), "Q5_0": (_8, _ANY_32), "Q5_1": (_ANY_32,),
    "Q8_0": (_8, _ANY_32), "IQ4_NL": (_8, _ANY_32), "MXFP4": (narrow_format(True, BLOCK_INPUTS),),
    "Q2_K": (_ANY,), "Q3_K": (grid.Q6_K.number, _ANY), "Q4_K": (grid.Q4_K.number, _ANY),
    "Q5_K": (grid.Q5_K.number, _ANY), "Q6_K": (grid.Q6_K.number, _ANY), "IQ4_XS": (grid.Q6_K.number, _ANY),
}  # fmt: skip
"""Formats (`Layout.format`) that hold the numbers of such blocks exactly, the smallest first. Digits of other widths
than 4 bits are whole bytes.
"""
