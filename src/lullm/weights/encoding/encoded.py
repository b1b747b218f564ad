"""EncodedTensor: a tensor that a checkpoint stores in several parts, decoded piece by piece while it is written."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from lullm.ops.quantized.stored import StoredRows


class EncodedTensor(ABC):
    """The interface of a tensor for loading: shape, type and size are those of the decoded values."""

    __slots__ = ()

    @property
    @abstractmethod
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    @abstractmethod
    def split(self, num_rows: int) -> "Sequence[EncodedTensor]":
        """Runs of `num_rows` rows, in order; decodes nothing."""

    @abstractmethod
    def decode(self) -> Tensor:
        """The values. Raises ModelLoadError: a stored code is no number."""

    @property
    def native_formats(self) -> tuple[int, ...]:
        """Formats (`Layout.format`) that hold the matrix exactly, the smallest first."""
        return ()

    def rows(self, number: int) -> StoredRows | None:
        """The rows for a matrix of this format, exactly; None: it cannot hold them.

        Raises ModelLoadError as `decode` does.
        """
        return None


@dataclass(frozen=True, eq=False)
class RowRange(EncodedTensor):
    """The rows `first` to `last` of a matrix `[out, in]`. Its parts are kept whole."""

    first: int
    last: int
    num_inputs: int

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.last - self.first, self.num_inputs))

    def split(self, num_rows: int) -> list[Self]:
        starts = range(self.first, self.last, num_rows)
        return [replace(self, first=start, last=min(start + num_rows, self.last)) for start in starts]
