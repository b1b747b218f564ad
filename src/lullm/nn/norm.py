"""RMSNorm (https://arxiv.org/abs/1910.07467) and LayerNorm (https://arxiv.org/abs/1607.06450)."""

import torch
from torch import Tensor, nn

from lullm.nn.linear import meta_parameter
from lullm.ops.table import Ops


class RMSNorm(nn.Module):
    """Normalise the last dimension by its root mean square, then scale it by a learned weight."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [..., size] -> the same
        return ops.rms_norm(x, self.weight, self.eps)

    def norm_(self, x: Tensor, ops: Ops) -> None:
        """Normalise `x [T, size]`, which may be a part of longer rows, in place."""
        ops.rms_norm_(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual stream: (the normed sum, the sum). Overwrites both arguments."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


class LayerNorm(nn.Module):
    """Bring the last dimension to mean 0 and variance 1, then scale and shift it by learned vectors."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.bias = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, size] -> the same
        return ops.layer_norm(x, self.weight, self.bias, self.eps)
