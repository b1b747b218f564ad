"""Rows made of others: reordered, transposed, normalized, interleaved, or consecutive."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lullm.ops.quantized.grid import GridRows
from lullm.ops.quantized.narrow import NarrowRows
from lullm.ops.quantized.stored import StoredRows
from lullm.weights.rows.cut import CutRows, Run
from lullm.weights.rows.place import PlainRows, QuantizedRows, Rows
from lullm.weights.rule import HeadOrder


@dataclass(frozen=True, slots=True, eq=False)
class _RowsOfOne:
    """Over the rows of one place; by default with its shape."""

    rows: Rows

    @property
    def shape(self) -> torch.Size:
        return self.rows.shape

    @property
    def bits(self) -> int:
        return self.rows.bits

    def fits(self, shape: torch.Size) -> bool:
        return self.rows.fits(shape)


@dataclass(frozen=True, slots=True, eq=False)
class _RowsOfSeveral(ABC):
    """Over several places whose matrices have the same storage."""

    places: tuple[Rows, ...]

    @property
    @abstractmethod
    def shape(self) -> torch.Size: ...

    @property
    def bits(self) -> int:
        return self.places[0].bits

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape


@dataclass(frozen=True, slots=True, eq=False)
class OrderedRows(_RowsOfOne):
    """Rows in another order than the checkpoint's (`rule.HeadOrder`), in runs."""

    runs: tuple[Run, ...]

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        for run in self.runs:
            start = max(run.source, first_row)
            end = min(run.source + run.num_rows, first_row + len(values))
            if start < end:
                destination = run.destination + start - run.source
                self.rows.write(values[start - first_row : end - first_row], destination)


@dataclass(frozen=True, slots=True, eq=False)
class TransposedRows(_RowsOfOne):
    """Rows of a matrix that the checkpoint holds as `[in, out]`. It is written whole."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size(reversed(self.rows.shape))

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert first_row == 0, "its rows are columns here"
        if isinstance(values, Tensor):
            assert values.shape == self.shape
            values = values.t().contiguous()
        self.rows.write(values)  # quantized values are stored by outputs, whatever the stated shape


@dataclass(frozen=True, slots=True, eq=False)
class NormalizedRows(_RowsOfOne):
    """Rows that are written with the length 1."""

    @property
    def bits(self) -> int:
        return 0

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor), "floating point numbers only"
        self.rows.write(torch.nn.functional.normalize(values.float(), dim=-1), first_row)


@dataclass(frozen=True, slots=True, eq=False)
class EitherWayRows(_RowsOfOne):
    """Rows of a matrix that checkpoints hold as `[out, in]` or as `[in, out]`, told apart by the shape. A square is
    `[out, in]`.
    """

    def fits(self, shape: torch.Size) -> bool:
        return shape in (self.rows.shape, TransposedRows(self.rows).shape)

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor) and first_row == 0, "it is written whole"
        (self.rows if values.shape == self.rows.shape else TransposedRows(self.rows)).write(values)


@dataclass(frozen=True, slots=True, eq=False)
class FlatRows(_RowsOfOne):
    """The rows of a vector that the checkpoint holds as `[1, size]`, or with other sizes of 1; or of a table that it
    holds as a batch of one. They are written whole.
    """

    @property
    def shape(self) -> torch.Size:
        return torch.Size((1, *self.rows.shape))

    def fits(self, shape: torch.Size) -> bool:
        own = self.rows.shape
        is_own = shape.numel() == max(shape, default=1) if len(own) == 1 else shape[1:] == own
        return is_own and shape.numel() == own.numel()

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor) and first_row == 0, "it is written whole"
        self.rows.write(values.reshape(self.rows.shape))


@dataclass(frozen=True, slots=True, eq=False)
class InterleavedRows(_RowsOfSeveral):
    """Rows of several places of one size, interleaved in the checkpoint: row r is in place `r % len(places)`."""

    @property
    def shape(self) -> torch.Size:
        num_rows, *rest = self.places[0].shape
        return torch.Size((len(self.places) * num_rows, *rest))

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        count = len(self.places)
        for number, place in enumerate(self.places):
            start = (number - first_row) % count
            if start < len(values):
                place.write(values[start::count], (first_row + start) // count)


@dataclass(frozen=True, slots=True, eq=False)
class ConsecutiveRows(_RowsOfSeveral):
    """Rows of several places of one parameter, one place after the other."""

    @property
    def shape(self) -> torch.Size:
        return torch.Size((sum(place.shape[0] for place in self.places), *self.places[0].shape[1:]))

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        start = 0
        for place in self.places:
            end = start + place.shape[0]
            first, last = max(start, first_row), min(end, first_row + len(values))
            if first < last:
                place.write(values[first - first_row : last - first_row], first - start)
            start = end


@dataclass(frozen=True, slots=True, eq=False)
class CopiedRows(_RowsOfSeveral):
    """Several places of one shape. One tensor fills each of them."""

    @property
    def shape(self) -> torch.Size:
        return self.places[0].shape

    def fits(self, shape: torch.Size) -> bool:
        return self.places[0].fits(shape)

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        for place in self.places:
            place.write(values, first_row)


@dataclass(frozen=True, slots=True, eq=False)
class StackedRows:
    """Places of one shape, stacked in one tensor: a row here is a whole place.

    `places`: those of this worker, by their numbers in the tensor. `num_all`: of the tensor.
    """

    places: Mapping[int, Rows]
    num_all: int

    @property
    def bits(self) -> int:
        return next(iter(self.places.values())).bits

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.num_all, *next(iter(self.places.values())).shape))

    def fits(self, shape: torch.Size) -> bool:
        return len(shape) > 1 and shape[0] == self.num_all and next(iter(self.places.values())).fits(shape[1:])

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        assert isinstance(values, Tensor | NarrowRows | GridRows), "floating point numbers, or several matrices"
        for number in range(len(values)):
            if first_row + number in self.places:
                self.places[first_row + number].write(values[number])

    def takes(self, first_row: int, num_rows: int) -> bool:
        """Whether some of these rows are here."""
        return any(number in self.places for number in range(first_row, first_row + num_rows))


@dataclass(frozen=True, slots=True, eq=False)
class NoRows:
    """The place of a tensor that other workers have."""

    shape: torch.Size

    bits: ClassVar[int] = 0

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def takes(self, first_row: int, num_rows: int) -> bool:
        return False

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        """Write nothing."""


def in_order(rows: "PlainRows | QuantizedRows | CutRows", order: HeadOrder) -> OrderedRows:
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


def takes(rows: Rows, first_row: int, num_rows: int) -> bool:
    """Whether writing these rows of a checkpoint's tensor may change anything. If not, they need not be read."""
    if isinstance(rows, CutRows | StackedRows | NoRows):
        return rows.takes(first_row, num_rows)
    if not isinstance(rows, OrderedRows):
        return True
    for run in rows.runs:
        start, end = max(run.source, first_row), min(run.source + run.num_rows, first_row + num_rows)
        if start < end and takes(rows.rows, run.destination + start - run.source, end - start):
            return True
    return False
