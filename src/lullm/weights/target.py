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
from lullm.nn.linear import FusedLinear
from lullm.weights.quantization import QuantizedRows, writable
from lullm.weights.rule import WeightRules

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Loadable(Protocol):
    """A model, as far as loading is concerned."""

    rules: WeightRules

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...


@dataclass(frozen=True, slots=True, eq=False)
class WeightTarget:
    """Where one tensor of a checkpoint goes: `rows` of the parameter named `parameter_name`."""

    name: str
    parameter_name: str
    parameter: torch.Tensor
    rows: torch.Tensor | QuantizedRows


class WeightTargets:
    """The targets of a materialised model, by checkpoint name.

    `names` are the canonical names of all tensors that a complete checkpoint holds.
    """

    def __init__(self, model: Loadable):
        self._rules = model.rules
        self._targets: dict[str, WeightTarget] = {}
        for layer_name, layer in model.named_modules():
            prefix, _, last = layer_name.rpartition(".")
            parts = self._rules.parts_of(last) if isinstance(layer, FusedLinear) else None
            for name, parameter in layer.named_parameters(recurse=False):
                owner, data = f"{layer_name}.{name}", parameter.data
                rows_of_all = writable(layer, owner, parameter)
                if parts is None:
                    self._targets[owner] = WeightTarget(owner, owner, data, rows_of_all)
                    continue
                for part, rows in zip(parts, rows_of_all.split(layer.part_sizes), strict=True):
                    part_name = f"{prefix}.{part}.{name}"
                    self._targets[part_name] = WeightTarget(part_name, owner, data, rows)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._targets)

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
        if tensor.shape != target.rows.shape:
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
