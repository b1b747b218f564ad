"""The layers of a model that may have adapters, and the places of a checkpoint's matrices in them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.errors import ModelLoadError
from lullm.nn.alibi import AlibiAttention
from lullm.nn.attention import Attention, EncoderOnlySelfAttention, QueryAttention
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.mlp import MLP, CutGatedMLP, GatedMLP, XieluMLP
from lullm.weights.rows.cut import Cut, CutRows
from lullm.weights.rows.place import PlainRows, Rows
from lullm.weights.rule import WeightRules
from lullm.weights.target import Loadable, ruled

_OWNERS = (Attention, AlibiAttention, EncoderOnlySelfAttention, QueryAttention, GatedMLP, CutGatedMLP, MLP, XieluMLP)
"""Their matrices multiply a row for each token of the step. Classes made from these may do otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class LoraLayer:
    """A matrix `[out, in]` that may have adapters.

    Args:
        parts: names of the parts that have adapters of their own, each as in a checkpoint; outputs of each, here.
        whole: the shape of the whole matrix, and the outputs of its parts, if this worker has a share of it only.
    """

    name: str
    matrix: Linear
    parts: tuple[str, ...]
    part_sizes: tuple[int, ...]
    cut: Cut | None

    @property
    def shape(self) -> tuple[int, int]:
        """(outputs, inputs) of the whole matrix."""
        rows, columns = (self.matrix.num_rows, self.matrix.num_columns) if self.cut is None else self.cut.whole
        return rows, columns

    @property
    def whole_part_sizes(self) -> tuple[int, ...]:
        if self.cut is None:
            return self.part_sizes
        return self.cut.part_sizes if len(self.parts) > 1 else (self.shape[0],)

    def part_sizes_of(self, name: str) -> list[int]:
        """Outputs of each part of this name, in the whole matrix: several if one tensor fills several parts."""
        return [size for part, size in zip(self.parts, self.whole_part_sizes, strict=True) if part == name]

    def write_inner(self, a: Tensor, name: str, values: Tensor) -> None:
        """Write a checkpoint's `values [rank, in]` into `a [C, R, in]`, as the parts of this name."""
        rank = len(values)
        if self.cut is not None and self.cut.dim == 1:
            [columns] = self.cut.runs
            values = values[:, columns.source : columns.source + columns.num_rows]
        for number, part in enumerate(self.parts):
            if part == name:
                a[number, :rank, : values.shape[1]].copy_(values)

    def write_outer(self, b: Tensor, name: str, values: Tensor, factor: float, rules: WeightRules) -> None:
        """Write a checkpoint's `values [out of a part, rank]` times `factor` into `b [R, out]`.

        The outputs are in the order of the layer's own weight, and scaled as it is.
        """
        rank = values.shape[1]
        rows: PlainRows | CutRows = PlainRows(b[:rank].T).scaled(factor)
        if self.cut is not None and self.cut.dim == 0:
            rows = CutRows(PlainRows(b[:rank].T).scaled(factor), _with_columns(self.cut, rank))
        first = 0
        for part, size in zip(self.parts, self.whole_part_sizes, strict=True):
            if part == name:
                own: Rows = ruled(rules, f"{part}.weight", rows.part(first, size))
                own.write(values)
            first += size


def _with_columns(cut: Cut, num_columns: int) -> Cut:
    return replace(cut, whole=torch.Size((cut.whole[0], num_columns)))


def lora_layers(model: Loadable) -> Mapping[str, LoraLayer]:
    """The layers that may have adapters, by the checkpoint's names of their parts. Raises ModelLoadError: none may."""
    found: dict[str, LoraLayer] = {}
    for owner_name, owner in model.named_modules():
        if type(owner) not in _OWNERS:
            continue
        for last, matrix in owner.named_children():
            if isinstance(matrix, Linear):
                layer = _layer(model, f"{owner_name}.{last}", matrix)
                found |= dict.fromkeys(layer.parts, layer)
    if not found:
        raise ModelLoadError("enable_lora: no layer of the model may have adapters; merge them into the checkpoint")
    return found


def adapter_rules(rules: WeightRules) -> WeightRules:
    """The rules for adapters of a checkpoint's matrices: PEFT's have one layout, and are added to what there is."""
    return replace(rules, transposes=(), flattens=(), offsets=())


def _layer(model: Loadable, name: str, matrix: Linear) -> LoraLayer:
    prefix, _, last = name.rpartition(".")
    parts = model.rules.parts_of(last) if isinstance(matrix, FusedLinear) else None
    sizes = matrix.part_sizes if isinstance(matrix, FusedLinear) else ()
    cut = model.cuts.get(f"{name}.weight")
    if parts is None:
        return LoraLayer(name, matrix, (name,), (matrix.num_rows,), cut)
    return LoraLayer(name, matrix, tuple(f"{prefix}.{part}" for part in parts), sizes, cut)
