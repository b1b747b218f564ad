"""Quantization of a checkpoint as it is read: which matrices, into what, and the way in.

Linear layers take the format that is asked for. The embedding and the head, often one matrix, take 8 bits in any case:
every token's logits go through it, and 4 bits there cost more accuracy than all layers together save. Norms and biases
stay as they are.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from lullm.errors import ModelLoadError
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.linear import Matrix
from lullm.ops.cpu import quantized_native
from lullm.ops.cpu.library import load_library
from lullm.ops.quantized_weight import QuantizedLayout, quantize_rows_

BITS: dict[str, Literal[8, 4]] = {"int8": 8, "int4": 4}
"""By the names that `EngineConfig.quantization` has."""


def quantize_model(model: nn.Module, quantization: str) -> None:
    """Give every matrix of a model without memory storage of 'int8' or 'int4'; `QuantizedRows` fills it."""
    for module in model.modules():
        if isinstance(module, Matrix) and module.weight is not None:
            module.quantize(8 if isinstance(module, Embedding | LMHead) else BITS[quantization])


class QuantizedRows:
    """Rows of a quantized matrix, to be written under the names that a tensor has: `shape`, `split`, `copy_`.

    What is written is quantized straight into its place: no copy of the matrix exists in another type.
    """

    def __init__(
        self, name: str, storage: Tensor, layout: QuantizedLayout, first_row: int = 0, last_row: int | None = None
    ):
        self._name = name  # of the parameter, for people
        self._storage = storage
        self._layout = layout
        self._first_row = first_row
        num_rows = (layout.out_features if last_row is None else last_row) - first_row
        self.shape = torch.Size((num_rows, layout.in_features))

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        return self._storage.nbytes * len(self) // self._layout.out_features

    def split(self, sizes: int | Sequence[int]) -> tuple["QuantizedRows", ...]:
        """Runs of rows: of so many each, the last perhaps shorter, or of these numbers."""
        if isinstance(sizes, int):
            sizes = [min(sizes, len(self) - first) for first in range(0, len(self), sizes)]
        starts = [self._first_row + sum(sizes[:i]) for i in range(len(sizes))]
        return tuple(
            QuantizedRows(self._name, self._storage, self._layout, start, start + size)
            for start, size in zip(starts, sizes, strict=True)
        )

    def copy_(self, rows: Tensor) -> "QuantizedRows":
        """Quantize `rows`, of this shape and any floating point type. Blocking.

        Raises:
            ModelLoadError: a value is not finite; nothing has been written.
        """
        is_native = self._storage.device.type == "cpu" and load_library() is not None
        quantize = quantized_native.quantize_rows_ if is_native else quantize_rows_
        try:
            quantize(self._storage, self._layout, self._first_row, rows)
        except ModelLoadError as error:
            raise ModelLoadError(f"{self._name}: {error}") from None
        return self


def writable(layer: nn.Module, name: str, parameter: nn.Parameter) -> Tensor | QuantizedRows:
    """A layer's parameter, of this full name, as a checkpoint sees it: rows of floating point that can be written."""
    if isinstance(layer, Matrix) and layer.layout is not None and parameter is layer.weight:
        return QuantizedRows(name, parameter.data, layer.layout)
    return parameter.data
