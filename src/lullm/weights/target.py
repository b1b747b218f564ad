"""WeightTargets: the rows of a parameter for every tensor name of a checkpoint.

The map is built from the model and its rules, so it has all names of a complete checkpoint. The loader and an update of
single tensors both find their rows here and write through them.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from lullm.errors import ModelLoadError
from lullm.nn.experts import Elsewhere
from lullm.nn.kv_scale import KVScales
from lullm.nn.linear import FusedLinear
from lullm.nn.recurrent.convolution import Convolution
from lullm.ops.table import Ops
from lullm.weights.encoding.encoded import EncodedTensor
from lullm.weights.encoding.joining import whole_name
from lullm.weights.rows.cut import Cut, CutRows, rows_of
from lullm.weights.rows.place import PlainRows, QuantizedRows, Rows
from lullm.weights.rows.scale import ScaleRows
from lullm.weights.rows.several import (
    ConsecutiveRows,
    CopiedRows,
    EitherWayRows,
    FlatRows,
    InterleavedRows,
    NormalizedRows,
    NoRows,
    StackedRows,
    TransposedRows,
    in_order,
)
from lullm.weights.rule import Stack, WeightRules

WholeRows = PlainRows | QuantizedRows | CutRows
"""All rows of a parameter."""

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Loadable(Protocol):
    """The interface of a model for loading."""

    rules: WeightRules
    cuts: Mapping[str, Cut]

    def modules(self) -> Iterator[nn.Module]: ...

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class WeightTarget:
    """The place of one tensor of a checkpoint: `rows` of some `parameters` (or a buffer), by their names.

    `stands_for`: tensors that this one replaces in a checkpoint.
    """

    name: str
    parameters: dict[str, torch.Tensor]
    rows: Rows
    stands_for: frozenset[str] = frozenset()


class WeightTargets:
    """The targets of a materialised model, by checkpoint name.

    `names` are the canonical names of all tensors that a complete checkpoint holds. They exclude the scales of an fp8
    KV cache, which a checkpoint may lack.

    Args:
        rules: of the checkpoint, if they differ from the model's.
    """

    def __init__(self, model: Loadable, ops: Ops, rules: WeightRules | None = None):
        self._rules = model.rules if rules is None else rules
        self._targets: dict[str, WeightTarget] = {}
        scale_targets: dict[str, WeightTarget] = {}
        self._elsewhere = {name for name, layer in model.named_modules() if isinstance(layer, Elsewhere)}
        seen: set[nn.Parameter] = set()
        for layer_name, layer in model.named_modules():
            if isinstance(layer, KVScales):
                scale_targets |= {target.name: target for target in _scale_targets(layer_name, layer)}
            for name, parameter in layer.named_parameters(recurse=False):
                if parameter not in seen:  # else tied: listed under its first name
                    owner = f"{layer_name}.{name}"
                    rows = rows_of(layer, owner, parameter, ops, model.cuts.get(owner))
                    self._add(owner, layer, parameter.data, rows, model.cuts.get(owner))
                    seen.add(parameter)
        for modules in dict.fromkeys(stack.modules for stack in self._rules.stacks):
            self._stack(modules)
        self.names = frozenset(name for name, target in self._targets.items() if not target.stands_for)
        self._targets |= scale_targets

    def _add(self, owner: str, layer: nn.Module, data: torch.Tensor, rows: WholeRows, cut: Cut | None) -> None:
        """Add the target of a parameter, or those of the tensors that a fused one is made of."""
        layer_name, _, name = owner.rpartition(".")
        prefix, _, last = layer_name.rpartition(".")
        names = self._rules.parts_of(last)
        if names is None or not isinstance(layer, FusedLinear | Convolution):
            self._targets[owner] = WeightTarget(owner, {owner: data}, ruled(self._rules, owner, rows))
            return
        sizes = cut.part_sizes if cut else layer.part_sizes
        parts: dict[str, list[Rows]] = {}
        firsts = itertools.accumulate(sizes[:-1], initial=0)
        for part, first, num_rows in zip(names, firsts, sizes, strict=True):
            part_name = f"{prefix}.{part}.{name}"
            parts.setdefault(part_name, []).append(ruled(self._rules, part_name, rows.part(first, num_rows)))
        for part_name, own in parts.items():
            copied = own[0] if len(own) == 1 else CopiedRows(tuple(own))
            self._targets[part_name] = WeightTarget(part_name, {owner: data}, copied)

    def _stack(self, modules: str) -> None:
        """Add the stacked tensors of the module lists of this name, in place of the modules' tensors or beside them."""
        pattern = re.compile(rf"^(.+\.{modules})\.(\d+)\.(.+)$")
        lists: dict[str, dict[int, dict[str, WeightTarget]]] = {}
        for match in filter(None, map(pattern.match, list(self._targets))):
            parts = lists.setdefault(match[1], {}).setdefault(int(match[2]), {})
            parts[match[3]] = self._targets[match[0]]
        stacks = [stack for stack in self._rules.stacks if stack.modules == modules]
        for (prefix, found), stack in itertools.product(lists.items(), stacks):
            if not all(found[number].keys() >= set(stack.parts) for number in found):  # experts without gates
                continue
            slices = [[found[number][part] for part in stack.parts] for number in sorted(found)]
            name = f"{prefix}.{stack.name}"
            self._targets[name] = _stacked(name, slices, stack, sorted(found))
            for target in () if stack.or_apart else itertools.chain.from_iterable(slices):
                del self._targets[target.name]

    def _is_elsewhere(self, name: str) -> bool:
        """Whether other workers have the tensor of this canonical name, and this one does not need it."""
        modules = itertools.accumulate(name.split("."), lambda path, part: f"{path}.{part}")
        return self._rules.is_elsewhere(name) or not self._elsewhere.isdisjoint(modules)

    def shape_of(self, name: str) -> torch.Size | None:
        """The shape of the tensor of this name in a checkpoint of the whole model; None: no such tensor."""
        target = self._targets.get(self._rules.canonical_name(name))
        return None if target is None else target.rows.shape

    def is_stacked(self, name: str) -> bool:
        """Whether the tensor of this name stacks tensors of several modules."""
        target = self._targets.get(self._rules.canonical_name(name))
        return target is not None and isinstance(target.rows, StackedRows)

    def find(self, name: str, tensor: torch.Tensor | EncodedTensor) -> WeightTarget | None:
        """The place of a checkpoint's tensor; None if the rules drop it.

        Raises:
            ModelLoadError: the model has no such tensor, or it has another shape, or it is not floating point.
        """
        canonical = self._rules.canonical_name(name)
        target = self._targets.get(canonical)
        if target is None:
            if self._rules.is_dropped(canonical):
                return None
            if self._is_elsewhere(canonical):
                return WeightTarget(canonical, {}, NoRows(tensor.shape))
            whole = whole_name(self._rules.joins, name)
            hint = "" if whole == name else f": alone it is no weight; take {whole} as floating point numbers"
            raise ModelLoadError(f"unexpected tensor {name}{hint}")
        if not target.rows.fits(tensor.shape):
            raise ModelLoadError(f"{name} has shape {list(tensor.shape)}, the model's has {list(target.rows.shape)}")
        if tensor.dtype not in _DTYPES:
            raise ModelLoadError(
                f"{name} is {tensor.dtype}, and config.json has no quantization_config that says what it means"
            )
        return target


def _scale_targets(layer_name: str, layer: KVScales) -> Iterator[WeightTarget]:
    """The scales of a layer's fp8 cache, under each name that a checkpoint may have for them."""
    prefix = layer_name.rpartition(".")[0]
    heads = layer.first_head, layer.num_all_heads
    for side, places in (("k_scale", slice(0, 1)), ("v_scale", slice(1, 2)), ("kv_scale", slice(0, 2))):
        name = f"{prefix}.{side}"
        yield WeightTarget(name, {f"{layer_name}.given": layer.given}, ScaleRows(name, layer.given[places], *heads))


def ruled(rules: WeightRules, name: str, rows: WholeRows) -> Rows:
    """The rows for the tensor of this canonical name, by the rules."""
    if (scale := rules.scale_of(name)) != 1.0:
        rows = rows.scaled(scale)
    if offset := rules.offset_of(name):
        assert not isinstance(rows, QuantizedRows), "an offset is for a weight that is not quantized"
        rows = rows.shifted(offset)
    if (parts := rules.part_scales_of(name)) is not None:
        starts = itertools.accumulate(parts.sizes, initial=0)
        pieces = (rows.part(start, size) for start, size in zip(starts, parts.sizes, strict=False))
        scaled = (piece.scaled(by) for piece, by in zip(pieces, parts.factors, strict=True))
        return ConsecutiveRows(tuple(scaled))
    if rules.is_normalized(name):
        return NormalizedRows(rows)
    if rules.is_transposed(name):
        return TransposedRows(rows)
    if rules.is_flattened(name):
        return FlatRows(rows)
    order = rules.head_order_of(name)
    return rows if order is None else in_order(rows, order)


def _stacked(name: str, slices: Sequence[Sequence[WeightTarget]], stack: Stack, numbers: Sequence[int]) -> WeightTarget:
    """The target of a tensor that stacks these targets in the slices of these numbers."""
    parameters: dict[str, torch.Tensor] = {}
    places: list[Rows] = []
    for targets in slices:
        for target in targets:
            parameters |= target.parameters
        rows = targets[0].rows
        if len(targets) > 1:
            join = InterleavedRows if stack.takes_turns else ConsecutiveRows
            rows = join(tuple(target.rows for target in targets))
        turn = EitherWayRows if stack.or_plain else TransposedRows
        places.append(turn(rows) if stack.is_transposed else rows)
    apart = frozenset(target.name for targets in slices for target in targets) if stack.or_apart else frozenset()
    rows = StackedRows(dict(zip(numbers, places, strict=True)), stack.num_modules or len(places))
    return WeightTarget(name, parameters, rows, apart)
