"""Layers with random weights in place of the meta ones."""

import torch
from torch import nn


def filled(layer: nn.Module, seed: int = 0) -> nn.Module:
    """The layer with parameters that have memory and are normally distributed."""
    generator = torch.Generator().manual_seed(seed)
    for module in layer.modules():
        for name, parameter in module.named_parameters(recurse=False):
            values = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            module.register_parameter(name, nn.Parameter(values, requires_grad=False))
    return layer
