"""Rows: the place of a checkpoint's tensor: plain rows, or rows that writing quantizes."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.ops.quantized.grid import GridLayout, GridRows
from lullm.ops.quantized.integer_rows import IntegerRows, rows_of_storage
from lullm.ops.quantized.narrow import NarrowLayout, NarrowRows
from lullm.ops.quantized.stored import StoredRows
from lullm.ops.quantized.weight import Layout, QuantizedLayout
from lullm.ops.table import Ops


class Rows(Protocol):
    """The place of one tensor of a checkpoint; the only way to write a weight."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def bits(self) -> int:
        """The format (`Layout.format`) of rows that `write` stores unchanged; 0: it takes numbers only."""
        ...

    def fits(self, shape: torch.Size) -> bool:
        """Whether a tensor of this shape can be written."""
        ...

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        """Write into the rows from `first_row` on; any floating point type, from any device. Blocking.

        Takes `StoredRows` of the format `bits`.

        Raises:
            ModelLoadError: the values cannot be stored; nothing was written.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class PlainRows:
    """Rows of a parameter that stores floating point numbers: a checkpoint's times `scale`, plus `offset`."""

    tensor: Tensor
    offset: float = 0.0
    scale: float = 1.0

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return self.tensor.shape

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        if self.offset or self.scale != 1.0:
            values = values.float() * self.scale + self.offset
        torch.atleast_1d(self.tensor)[first_row : first_row + len(values)].copy_(values)

    def write_columns(self, values: Tensor | StoredRows, first_column: int, first_row: int) -> None:
        """`write` of those columns of the values, from `first_column` on, that there are here."""
        assert isinstance(values, Tensor), "floating point numbers only"
        self.write(values[:, first_column : first_column + self.shape[1]], first_row)

    def part(self, first_row: int, num_rows: int) -> "PlainRows":
        return PlainRows(self.tensor[first_row : first_row + num_rows], self.offset, self.scale)

    def scaled(self, factor: float) -> "PlainRows":
        return replace(self, scale=self.scale * factor)

    def shifted(self, offset: float) -> "PlainRows":
        return replace(self, offset=self.offset + offset)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows of a quantized matrix. `write` quantizes into the storage, without a copy of the matrix in another type."""

    name: str
    """The parameter's name, for errors."""
    storage: Tensor
    layout: Layout
    ops: Ops
    first_row: int
    num_rows: int
    scale: float = 1.0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_rows, self.layout.in_features))

    @property
    def bits(self) -> int:
        return self.layout.format

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        layout, first_row = self.layout, self.first_row + first_row
        try:
            if not isinstance(values, Tensor) or isinstance(layout, GridLayout):
                self._store(values, first_row)
                return
            if self.scale != 1.0:
                values = values.float() * self.scale
            if isinstance(layout, NarrowLayout):
                self.ops.store_narrow_(self.storage, layout, first_row, layout.quantize(values))
            elif isinstance(layout, QuantizedLayout):
                self.ops.quantize_rows_(self.storage, layout, first_row, values)
        except ModelLoadError as error:
            raise ModelLoadError(f"{self.name}: {error}") from None

    def write_columns(self, values: Tensor | StoredRows, first_column: int, first_row: int) -> None:
        """`write` of those columns of the values, from `first_column` on, that there are here.

        Values quantized here get the scales of whole rows, so that all workers' columns together equal those of one
        worker; narrow floats get the scales of their groups.
        """
        layout = self.layout
        scale = self.scale
        if isinstance(values, Tensor) and isinstance(layout, QuantizedLayout):
            values, scale = self._quantized(values.float() * scale if scale != 1.0 else values), 1.0
        if isinstance(values, Tensor):
            values = values[:, first_column : first_column + layout.in_features]
        else:
            try:
                values = values.columns(first_column, layout.in_features)
            except ValueError as error:
                raise ModelLoadError(
                    f"{self.name}: {error}; choose another tensor_parallel_size, or pipeline_parallel_size"
                ) from None
        replace(self, scale=scale).write(values, first_row)

    def _quantized(self, values: Tensor) -> IntegerRows:
        """Whole rows, quantized; this place holds some of their columns."""
        assert isinstance(self.layout, QuantizedLayout)
        layout = replace(self.layout, out_features=len(values), in_features=values.shape[1])
        storage = torch.zeros(layout.shape, dtype=torch.uint8)
        try:
            self.ops.quantize_rows_(storage, layout, 0, values)
        except ModelLoadError as error:
            raise ModelLoadError(f"{self.name}: {error}") from None
        return rows_of_storage(storage, layout)

    def _store(self, values: Tensor | StoredRows, first_row: int) -> None:
        layout = self.layout
        if isinstance(values, IntegerRows) and isinstance(layout, QuantizedLayout):
            self.ops.store_rows_(self.storage, layout, first_row, values.scaled(self.scale))
        elif isinstance(values, NarrowRows) and isinstance(layout, NarrowLayout):
            self.ops.store_narrow_(self.storage, layout, first_row, values.scaled(self.scale))
        elif isinstance(values, GridRows) and isinstance(layout, GridLayout) and self.scale == 1.0:
            self.ops.store_groups_(self.storage, layout, first_row, values)
        else:
            raise ModelLoadError(
                "it holds groups of integers as the checkpoint (or GGUF file) has them, which numbers cannot "
                "replace; load it with quantization='int8', or the model's unquantized safetensors"
            )

    def part(self, first_row: int, num_rows: int) -> "QuantizedRows":
        return replace(self, first_row=self.first_row + first_row, num_rows=num_rows)

    def scaled(self, factor: float) -> "QuantizedRows":
        return replace(self, scale=self.scale * factor)
