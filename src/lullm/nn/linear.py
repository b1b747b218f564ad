"""Linear layers; `FusedLinear` holds several matrices that share their input as one."""

import torch
from torch import Tensor, nn

from lullm.ops.table import Ops


def meta_parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """A parameter that has a shape and no memory yet."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


class Linear(nn.Module):
    """`x @ weight.T + bias`; weight `[out, in]`."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((out_features, in_features), dtype)
        self.bias = meta_parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, in] -> [T, out]
        return ops.linear(x, self.weight, self.bias)


class FusedLinear(Linear):
    """Matrices stacked along their outputs: one multiplication instead of several small ones.

    `part_sizes` are the rows of the parts in order; a `Fusion` rule names the parts as a checkpoint does.
    """

    def __init__(self, in_features: int, part_sizes: tuple[int, ...], bias: bool, dtype: torch.dtype):
        super().__init__(in_features, sum(part_sizes), bias, dtype)
        self.part_sizes = part_sizes
