"""From the meta device into an arena: every parameter of a model becomes a tensor of the arena."""

from torch import nn

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.units import round_up


def weights_bytes(model: nn.Module) -> int:
    """Bytes that the parameters take in an arena, alignment included."""
    return sum(round_up(p.numel() * p.dtype.itemsize, ALIGNMENT) for p in model.parameters())


def materialize(model: nn.Module, arena: Arena) -> None:
    """Replace every meta parameter by one of the same name, shape and dtype in the arena; contents are zeros.

    Raises:
        CacheSizeError: the arena is smaller than `weights_bytes(model)`.
    """
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                memory = arena.empty(parameter.shape, parameter.dtype)
                module.register_parameter(name, nn.Parameter(memory, requires_grad=False))
