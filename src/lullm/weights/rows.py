"""Rows: where a tensor of a checkpoint is written to: plain rows, rows that are quantized by writing, KV scales."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from lullm.errors import ModelLoadError
from lullm.nn.linear import Matrix
from lullm.ops.quantized.grid import GridLayout, GridRows
from lullm.ops.quantized.integer_rows import IntegerRows
from lullm.ops.quantized.weight import Layout, QuantizedLayout
from lullm.ops.table import Ops
from lullm.weights.rule import HeadOrder


class Rows(Protocol):
    """The place of one tensor of a checkpoint; the only way to write a weight."""

    @property
    def shape(self) -> torch.Size: ...

    @property
    def bits(self) -> int:
        """The format (`Layout.format`) of integers that `write` stores as they are; 0: it takes numbers only."""
        ...

    def fits(self, shape: torch.Size) -> bool:
        """Whether a tensor of this shape can be written."""
        ...

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        """Write into the rows from `first_row` on; any floating point type, from any device. Blocking.

        `IntegerRows` and `GridRows` are taken where `bits` says so.

        Raises:
            ModelLoadError: the values cannot be stored; nothing has been written.
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

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        if self.offset or self.scale != 1.0:
            values = values.float() * self.scale + self.offset
        torch.atleast_1d(self.tensor)[first_row : first_row + len(values)].copy_(values)

    def part(self, first_row: int, num_rows: int) -> "PlainRows":
        return PlainRows(self.tensor[first_row : first_row + num_rows], self.offset, self.scale)


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedRows:
    """Rows of a quantized matrix. `write` quantizes into the storage, without a copy of the matrix in another type."""

    name: str
    """The parameter's, for errors."""
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

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        if not isinstance(values, Tensor) or not isinstance(self.layout, QuantizedLayout):
            self._store(values, self.first_row + first_row)
            return
        if self.scale != 1.0:
            values = values.float() * self.scale
        try:
            self.ops.quantize_rows_(self.storage, self.layout, self.first_row + first_row, values)
        except ModelLoadError as error:
            raise ModelLoadError(f"{self.name}: {error}") from None

    def _store(self, values: Tensor | IntegerRows | GridRows, first_row: int) -> None:
        layout = self.layout
        if isinstance(values, IntegerRows) and isinstance(layout, QuantizedLayout):
            self.ops.store_rows_(self.storage, layout, first_row, values.scaled(self.scale))
        elif isinstance(values, GridRows) and isinstance(layout, GridLayout) and self.scale == 1.0:
            self.ops.store_groups_(self.storage, layout, first_row, values)
        else:
            raise ModelLoadError(
                f"{self.name} holds groups of integers as the checkpoint (or GGUF file) has them, which numbers cannot "
                "replace; load it with quantization='int8', or the model's unquantized safetensors"
            )

    def part(self, first_row: int, num_rows: int) -> "QuantizedRows":
        return replace(self, first_row=self.first_row + first_row, num_rows=num_rows)


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of a checkpoint's tensor, from `source` on, that are consecutive in the parameter, too."""

    source: int
    destination: int
    num_rows: int


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows:
    """Rows that stand in another order than in the checkpoint (`rule.HeadOrder`), in runs."""

    rows: "PlainRows | QuantizedRows"
    runs: tuple[Run, ...]

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def bits(self) -> int:
        return self.rows.bits

    def fits(self, shape: torch.Size) -> bool:
        return self.rows.fits(shape)

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        for run in self.runs:
            start = max(run.source, first_row)
            end = min(run.source + run.num_rows, first_row + len(values))
            if start < end:
                destination = run.destination + start - run.source
                self.rows.write(values[start - first_row : end - first_row], destination)


@dataclass(frozen=True, slots=True, eq=False)
class TransposedRows:
    """Rows of a matrix that the checkpoint holds as `[in, out]`. It is written whole."""

    rows: Rows

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size(reversed(self.rows.shape))

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        assert first_row == 0 and values.shape == self.shape, "its rows are columns here"
        self.rows.write(values.t().contiguous())


@dataclass(frozen=True, slots=True, eq=False)
class InterleavedRows:
    """Rows of several places of one size that take turns in the checkpoint: row r is in place `r % len(places)`."""

    places: tuple[Rows, ...]

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        num_rows, *rest = self.places[0].shape
        return torch.Size((len(self.places) * num_rows, *rest))

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        count = len(self.places)
        for number, place in enumerate(self.places):
            start = (number - first_row) % count
            if start < len(values):
                place.write(values[start::count], (first_row + start) // count)


@dataclass(frozen=True, slots=True, eq=False)
class ConsecutiveRows:
    """Rows of several places, one place after the other."""

    places: tuple[Rows, ...]

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((sum(place.shape[0] for place in self.places), *self.places[0].shape[1:]))

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        start = 0
        for place in self.places:
            end = start + place.shape[0]
            first, last = max(start, first_row), min(end, first_row + len(values))
            if first < last:
                place.write(values[first - first_row : last - first_row], first - start)
            start = end


@dataclass(frozen=True, slots=True, eq=False)
class CopiedRows:
    """Several places of one shape that one tensor fills, each with all of it."""

    places: tuple[Rows, ...]

    @property
    def bits(self) -> int:
        return self.places[0].bits

    @property
    def shape(self) -> torch.Size:
        return self.places[0].shape

    def fits(self, shape: torch.Size) -> bool:
        return self.places[0].fits(shape)

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        for place in self.places:
            place.write(values, first_row)


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows:
    """Places of one shape, of which one tensor holds all: a row here is all of one place."""

    places: tuple[Rows, ...]

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.places), *self.places[0].shape))

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        for place, part in zip(self.places[first_row:], values, strict=False):
            place.write(part)


def in_order(rows: "PlainRows | QuantizedRows", order: HeadOrder) -> OrderedRows:
    """The rows in the order of a rule."""
    size, num_rows = len(order.order), rows.shape[0]
    num_heads = num_rows // size if order.num_heads is None else order.num_heads
    starts = [i for i, row in enumerate(order.order) if i == 0 or row != order.order[i - 1] + 1]
    spans = list(zip(starts, [*starts[1:], size], strict=True))
    runs = [
        Run(head * size + order.order[start], head * size + start, end - start)
        for head in range(num_heads)
        for start, end in spans
    ]
    if num_heads * size < num_rows:
        runs.append(Run(num_heads * size, num_heads * size, num_rows - num_heads * size))
    return OrderedRows(rows, tuple(runs))


@dataclass(frozen=True, slots=True, eq=False)
class ScaleRows:
    """`given [1 or 2, Hkv]` of a layer's `KVScales`. One tensor fills it: a scale per head, or one scale for all."""

    name: str
    given: Tensor

    bits: ClassVar[int] = 0

    @property
    def shape(self) -> torch.Size:
        return self.given.shape[1:]

    def fits(self, shape: torch.Size) -> bool:
        return shape.numel() in (1, *self.shape)

    def write(self, values: Tensor | IntegerRows | GridRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        assert first_row == 0, "scales are written as a whole"
        if not (values.isfinite() & (values > 0)).all():
            raise ModelLoadError(
                f"{self.name}: a scale of the KV cache must be a positive number, not {values.tolist()}"
            )
        self.given.copy_(values.reshape(-1))


def rows_of(layer: nn.Module, name: str, parameter: nn.Parameter, ops: Ops) -> PlainRows | QuantizedRows:
    """All rows of a layer's parameter with this full name, in the checkpoint's order."""
    if isinstance(layer, Matrix) and layer.layout is not None and parameter is layer.weight:
        return QuantizedRows(name, parameter.data, layer.layout, ops, 0, layer.layout.out_features)
    return PlainRows(parameter.data)
