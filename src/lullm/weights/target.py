"""WeightTargets: for every tensor name of a checkpoint, the slice of a parameter it fills.

The map is built from the model and its rules, so it knows what a complete checkpoint holds. Whole checkpoints and
single tensors (an update of a few weights, under the checkpoint's own names) go through the same `apply`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from lullm.errors import ModelLoadError
from lullm.nn.kv_scale import KVScales
from lullm.nn.linear import FusedLinear
from lullm.weights.quantization import QuantizedRows, writable
from lullm.weights.rule import WeightRules

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Loadable(Protocol):
    """A model, as far as loading is concerned."""

    rules: WeightRules

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...


class ScaleRows:
    """`given [1 or 2, Hkv]` of a layer's `KVScales`, to be written by one tensor: a scale per head, or one for all."""

    def __init__(self, name: str, given: torch.Tensor):
        self._name = name
        self._given = given
        self.shape = given.shape[1:]

    def copy_(self, scales: torch.Tensor) -> "ScaleRows":
        """Any shape of so many elements. Raises ModelLoadError: a scale is not a positive number."""
        if not (scales.isfinite() & (scales > 0)).all():
            raise ModelLoadError(
                f"{self._name}: a scale of the KV cache must be a positive number, not {scales.tolist()}"
            )
        self._given.copy_(scales.reshape(-1))
        return self


class OffsetRows:
    """A parameter that is written as the checkpoint's values plus `value`; see `Offset`."""

    def __init__(self, rows: torch.Tensor, value: float):
        self._rows = rows
        self._value = value
        self.shape = rows.shape

    def copy_(self, rows: torch.Tensor) -> "OffsetRows":
        self._rows.copy_(rows.float() + self._value)
        return self


Rows = torch.Tensor | QuantizedRows | ScaleRows | OffsetRows
"""What takes the contents of one tensor of a checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class WeightTarget:
    """Where one tensor of a checkpoint goes: `rows` of the parameter (or buffer) named `parameter_name`."""

    name: str
    parameter_name: str
    parameter: torch.Tensor
    rows: Rows

    def fits(self, shape: torch.Size) -> bool:
        """Whether a tensor of this shape can be written."""
        if isinstance(self.rows, ScaleRows):
            return shape.numel() in (1, *self.rows.shape)
        return shape == self.rows.shape


class WeightTargets:
    """The targets of a materialised model, by checkpoint name.

    `names` are the canonical names of all tensors that a complete checkpoint holds. The scales of an fp8 KV cache are
    not among them: a checkpoint may hold some.
    """

    def __init__(self, model: Loadable):
        self._rules = model.rules
        self._targets: dict[str, WeightTarget] = {}
        scale_targets: dict[str, WeightTarget] = {}
        for layer_name, layer in model.named_modules():
            prefix, _, last = layer_name.rpartition(".")
            if isinstance(layer, KVScales):
                for name, sides in (("k_scale", slice(0, 1)), ("v_scale", slice(1, 2)), ("kv_scale", slice(0, 2))):
                    rows, owner = ScaleRows(f"{prefix}.{name}", layer.given[sides]), f"{layer_name}.given"
                    scale_targets[f"{prefix}.{name}"] = WeightTarget(f"{prefix}.{name}", owner, layer.given, rows)
            parts = self._rules.parts_of(last) if isinstance(layer, FusedLinear) else None
            for name, parameter in layer.named_parameters(recurse=False):
                owner, data = f"{layer_name}.{name}", parameter.data
                rows_of_all = writable(layer, owner, parameter)
                offset = self._rules.offset_of(owner)
                if offset and isinstance(rows_of_all, torch.Tensor):
                    self._targets[owner] = WeightTarget(owner, owner, data, OffsetRows(rows_of_all, offset))
                    continue
                if parts is None:
                    self._targets[owner] = WeightTarget(owner, owner, data, rows_of_all)
                    continue
                for part, rows in zip(parts, rows_of_all.split(layer.part_sizes), strict=True):
                    part_name = f"{prefix}.{part}.{name}"
                    self._targets[part_name] = WeightTarget(part_name, owner, data, rows)
        self.names = frozenset(self._targets)
        self._targets |= scale_targets

    def find(self, name: str, tensor: torch.Tensor) -> WeightTarget | None:
        """Where a checkpoint tensor goes; None if the rules drop it.

        Raises:
            ModelLoadError: the model has no such tensor, or it has another shape, or it is not floating point.
        """
        canonical = self._rules.canonical_name(name)
        target = self._targets.get(canonical)
        if target is None:
            if self._rules.is_dropped(canonical):
                return None
            raise ModelLoadError(f"unexpected tensor {name}")
        if not target.fits(tensor.shape):
            raise ModelLoadError(f"{name} has shape {list(tensor.shape)}, the model's has {list(target.rows.shape)}")
        if tensor.dtype not in _DTYPES:
            raise ModelLoadError(f"{name} is {tensor.dtype}: quantized checkpoints are not supported yet")
        return target

    def apply(self, name: str, tensor: torch.Tensor) -> str | None:
        """Copy one checkpoint tensor into its place, converting its dtype; the matrix must not be packed.

        Returns:
            The canonical name; None if the rules drop this tensor.

        Raises:
            ModelLoadError: see `find`.
        """
        target = self.find(name, tensor)
        if target is None:
            return None
        target.rows.copy_(tensor)
        return target.name
