"""WeightTargets: for every tensor name of a checkpoint, the slice of a parameter it fills.

The map is built from the model and its rules, so it knows what a complete checkpoint holds. Whole checkpoints and
single tensors (an update of a few weights, under the checkpoint's own names) go through the same `apply`.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import nn

from lullm.errors import ModelLoadError
from lullm.nn.linear import FusedLinear
from lullm.weights.rule import WeightRules

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class Loadable(Protocol):
    """A model, as far as loading is concerned."""

    rules: WeightRules

    def named_modules(self) -> Iterator[tuple[str, nn.Module]]: ...


class WeightTargets:
    """The targets of a materialised model, by checkpoint name.

    `names` are the canonical names of all tensors that a complete checkpoint holds.
    """

    def __init__(self, model: Loadable):
        self._rules = model.rules
        self._targets: dict[str, torch.Tensor] = {}
        for layer_name, layer in model.named_modules():
            prefix, _, last = layer_name.rpartition(".")
            parts = self._rules.parts_of(last) if isinstance(layer, FusedLinear) else None
            for name, parameter in layer.named_parameters(recurse=False):
                if parts is None:
                    self._targets[f"{layer_name}.{name}"] = parameter.data
                else:
                    for part, rows in zip(parts, parameter.data.split(layer.part_sizes), strict=True):
                        self._targets[f"{prefix}.{part}.{name}"] = rows

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._targets)

    def apply(self, name: str, tensor: torch.Tensor) -> str | None:
        """Copy one checkpoint tensor into its place, converting its dtype.

        Returns:
            The canonical name; None if the rules drop this tensor.

        Raises:
            ModelLoadError: the model has no such tensor, or it has another shape, or it is not floating point.
        """
        canonical = self._rules.canonical_name(name)
        target = self._targets.get(canonical)
        if target is None:
            if self._rules.is_dropped(canonical):
                return None
            raise ModelLoadError(f"unexpected tensor {name}")
        if tensor.shape != target.shape:
            raise ModelLoadError(f"{name} has shape {list(tensor.shape)}, the model's has {list(target.shape)}")
        if tensor.dtype not in _DTYPES:
            raise ModelLoadError(f"{name} is {tensor.dtype}: quantized checkpoints are not supported yet")
        target.copy_(tensor)
        return canonical
