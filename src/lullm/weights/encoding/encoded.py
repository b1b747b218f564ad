"""EncodedTensor: a tensor that a checkpoint holds as several others, decoded a piece at a time as it is written."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from lullm.ops.quantized.stored import StoredRows


class EncodedTensor(Protocol):
    """As far as loading needs it, a tensor: shape, type and size are those of what is decoded."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def nbytes(self) -> int: ...

    def __len__(self) -> int: ...

    def split(self, num_rows: int) -> "Sequence[EncodedTensor]":
        """Runs of so many rows, in order; nothing is decoded."""
        ...

    def decode(self) -> Tensor:
        """Raises ModelLoadError: what is stored means no number."""
        ...

    def rows(self, number: int) -> StoredRows | None:
        """The same as a matrix of this format (`Layout.format`) holds it exactly; None: it does not.

        Raises ModelLoadError as `decode` does.
        """
        ...
