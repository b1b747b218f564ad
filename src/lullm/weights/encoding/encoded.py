"""EncodedTensor: a tensor that a checkpoint holds as several others, decoded a piece at a time as it is written."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from lullm.ops.quantized.stored import StoredRows


class EncodedTensor(ABC):
    """As far as loading needs it, a tensor: shape, type and size are those of what is decoded."""

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
        """Runs of so many rows, in order; nothing is decoded."""

    @abstractmethod
    def decode(self) -> Tensor:
        """Raises ModelLoadError: what is stored means no number."""

    @abstractmethod
    def rows(self, number: int) -> StoredRows | None:
        """The same as a matrix of this format (`Layout.format`) holds it exactly; None: it does not.

        Raises ModelLoadError as `decode` does.
        """
