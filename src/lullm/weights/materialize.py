"""Materialises a meta model: every parameter becomes a tensor of an arena."""

from torch import nn

from lullm.arena.arena import ALIGNMENT, Arena
from lullm.units import round_up


def weights_bytes(model: nn.Module) -> int:
    """Bytes that the parameters take in an arena, alignment included."""
    return sum(round_up(p.numel() * p.dtype.itemsize, ALIGNMENT) for p in model.parameters())


def materialize(model: nn.Module, arena: Arena) -> None:
    """Replace every meta parameter by one in the arena, with the same name, shape and dtype; contents are undefined.

    A parameter under two names (tied weights) stays one.

    Raises:
        CacheSizeError: the arena is smaller than `weights_bytes(model)`.
    """
    made: dict[nn.Parameter, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.is_meta:
                if parameter not in made:
                    memory = arena.empty(parameter.shape, parameter.dtype)
                    made[parameter] = nn.Parameter(memory, requires_grad=False)
                module.register_parameter(name, made[parameter])
