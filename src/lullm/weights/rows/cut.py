"""Cuts: a worker's part of a whole model's parameters, if workers share matrices.

A worker's model has the modules of the whole one, with fewer heads, channels and inner elements. So the two shapes
determine the cut of a parameter. The family's rules are those of the whole model.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from lullm.config.model import Share
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.linear import FusedLinear, Matrix
from lullm.nn.recurrent.convolution import Convolution
from lullm.ops.quantized.stored import StoredRows
from lullm.ops.table import Ops
from lullm.weights.rows.place import PlainRows, QuantizedRows


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive rows of a checkpoint's tensor, from `source` on, that are consecutive in the parameter, too."""

    source: int
    destination: int
    num_rows: int


@dataclass(frozen=True, slots=True)
class Cut:
    """A worker's part of a parameter.

    Args:
        whole: its shape in the whole model.
        dim: 0: some of its rows, in `runs`; 1: some of its columns, in one run.
        part_sizes: of the whole `FusedLinear`.
    """

    whole: torch.Size
    dim: Literal[0, 1]
    runs: tuple[Run, ...]
    part_sizes: tuple[int, ...] = ()

    def fills(self, shape: torch.Size) -> bool:
        """Whether a parameter of this shape has no rows or columns beside those of the whole one."""
        return sum(run.num_rows for run in self.runs) == shape[self.dim]


@dataclass(frozen=True, slots=True, eq=False)
class CutRows:
    """The rows of a whole parameter; `rows` holds a part of them."""

    rows: PlainRows | QuantizedRows
    cut: Cut

    @property
    def shape(self) -> torch.Size:
        return self.cut.whole

    @property
    def bits(self) -> int:
        return self.rows.bits

    def fits(self, shape: torch.Size) -> bool:
        return shape == self.shape

    def takes(self, first_row: int, num_rows: int) -> bool:
        """Whether this worker has some of these rows."""
        if self.cut.dim == 1:
            return True
        last = first_row + num_rows
        return any(run.source < last and first_row < run.source + run.num_rows for run in self.cut.runs)

    def write(self, values: Tensor | StoredRows, first_row: int = 0) -> None:
        if self.cut.dim == 1:
            [columns] = self.cut.runs
            self.rows.write_columns(values, columns.source, first_row)
            return
        for run in self.cut.runs:
            start, end = max(run.source, first_row), min(run.source + run.num_rows, first_row + len(values))
            if start < end:
                self.rows.write(values[start - first_row : end - first_row], run.destination + start - run.source)

    def part(self, first_row: int, num_rows: int) -> "CutRows":
        whole = torch.Size((num_rows, *self.shape[1:]))
        if self.cut.dim == 1:
            return CutRows(self.rows.part(first_row, num_rows), Cut(whole, 1, self.cut.runs))
        runs = []
        for run in self.cut.runs:
            start, end = max(run.source, first_row), min(run.source + run.num_rows, first_row + num_rows)
            if start < end:
                runs.append(Run(start - first_row, run.destination + start - run.source, end - start))
        return CutRows(self.rows, Cut(whole, 0, tuple(runs)))

    def scaled(self, factor: float) -> "CutRows":
        return CutRows(self.rows.scaled(factor), self.cut)

    def shifted(self, offset: float) -> "CutRows":
        assert isinstance(self.rows, PlainRows)
        return CutRows(self.rows.shifted(offset), self.cut)


def rows_of(
    layer: nn.Module, name: str, parameter: nn.Parameter, ops: Ops, cut: Cut | None = None
) -> PlainRows | QuantizedRows | CutRows:
    """All rows of a layer's parameter with this full name, in the checkpoint's order."""
    rows: PlainRows | QuantizedRows = PlainRows(parameter.data)
    if isinstance(layer, Matrix) and layer.layout is not None and parameter is layer.weight:
        rows = QuantizedRows(name, parameter.data, layer.layout, ops, 0, layer.layout.out_features)
    return rows if cut is None else CutRows(rows, cut)


def cuts_of(model: nn.Module, whole: nn.Module, share: Share) -> dict[str, Cut]:
    """The cuts of a worker's meta model, by the names of parameters; whole parameters have no cut.

    `whole` has the first expert of each layer at least: all are cut alike.
    """
    layers, cuts = dict(whole.named_modules()), {}
    of_first: dict[str, Cut | None] = {}
    for layer_name, layer in model.named_modules():
        first_name = _EXPERT.sub(".experts.0.", layer_name)
        for name, _ in layer.named_parameters(recurse=False):
            first = f"{first_name}.{name}"
            if first not in of_first:
                of_first[first] = _cut(layer, layers[first_name], name, share)
            cut = of_first[first]
            if cut is not None:
                cuts[f"{layer_name}.{name}"] = cut
    return cuts


_EXPERT = re.compile(r"\.experts\.\d+\.")


def _cut(layer: nn.Module, whole: nn.Module, name: str, share: Share) -> Cut | None:
    shape, of_all = getattr(layer, name).shape, getattr(whole, name).shape
    if shape == of_all:
        is_of_sum = name == "bias" and isinstance(layer, Matrix) and layer.weight.shape != whole.weight.shape
        return Cut(of_all, 0, ()) if is_of_sum and share.axis.rank > 0 else None  # the first worker adds it
    dim: Literal[0, 1] = 0 if shape[0] != of_all[0] else 1
    if isinstance(layer, LMHead):
        num_rows = min(layer.num_own_rows, max(of_all[0] - layer.first_row, 0))
        return Cut(of_all, 0, (Run(layer.first_row, 0, num_rows),) if num_rows else ())
    if isinstance(layer, Embedding):
        return Cut(of_all, 0, (Run(0, 0, of_all[0]),))
    sizes, whole_sizes = (shape[dim],), (of_all[dim],)
    if dim == 0:
        sizes = getattr(layer, "shared_sizes", sizes)
        whole_sizes = getattr(whole, "shared_sizes", whole_sizes)
    part_sizes = whole.part_sizes if isinstance(whole, FusedLinear | Convolution) else ()
    return Cut(of_all, dim, tuple(_runs(sizes, whole_sizes, share)), part_sizes)


def _runs(sizes: tuple[int, ...], whole_sizes: tuple[int, ...], share: Share) -> list[Run]:
    """The worker's run of each part."""
    runs, source, destination = [], 0, 0
    for size, of_all in zip(sizes, whole_sizes, strict=True):
        if size:
            runs.append(Run(source + share.first(size, of_all), destination, size))
        source, destination = source + of_all, destination + size
    return runs


def clear_gaps(parameters: Iterable[tuple[str, nn.Parameter]], cuts: Mapping[str, Cut]) -> None:
    """Zero the parameters with rows that the whole model lacks, before they are filled."""
    for name, parameter in parameters:
        cut = cuts.get(name)
        if cut is not None and (parameter.dtype == torch.uint8 or not cut.fills(parameter.shape)):
            parameter.zero_()
