"""ScaleRows: the place of the scales of an fp8 KV cache."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized.stored import StoredRows


@dataclass(frozen=True, slots=True, eq=False)
class ScaleRows:
    """`given [1 or 2, Hkv]` of a layer's `KVScales`. One tensor fills it: a scale per head, or one scale for all.

    `num_all_heads`: of a checkpoint. This worker has the heads from `first_head` on.
    """

    name: str
    given: Tensor
    first_head: int
    num_all_heads: int

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_all_heads,))

    def fits(self, shape: torch.Size) -> bool:
        return shape.numel() in (1, *self.shape)

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        assert first_row == 0, "scales are written as a whole"
        if not (values.isfinite() & (values > 0)).all():
            raise ModelLoadError(
                f"{self.name}: a scale of the KV cache must be a positive number, not {values.tolist()}"
            )
        values = values.reshape(-1)
        if len(values) > 1:
            values = values[self.first_head : self.first_head + self.given.shape[1]]
        self.given.copy_(values)
