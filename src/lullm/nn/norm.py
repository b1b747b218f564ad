"""RMSNorm (https://arxiv.org/abs/1910.07467) and LayerNorm (https://arxiv.org/abs/1607.06450)."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from lullm.nn.linear import meta_parameter
from lullm.ops.table import Ops


class RMSNorm(nn.Module):
    """Normalise the last dimension by its root mean square, then scale it by a learned weight, if it has one."""

    weight: Tensor

    def __init__(self, size: int, eps: float, dtype: torch.dtype, has_weight: bool = True):
        super().__init__()
        if has_weight:
            self.weight = meta_parameter((size,), dtype)
        else:
            self.register_buffer("weight", torch.ones(size, dtype=dtype, device="cpu"), persistent=False)
        self.eps = eps

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [..., size] -> the same
        return ops.rms_norm(x, self.weight, self.eps)

    def norm_(self, x: Tensor, ops: Ops) -> None:
        """Normalise `x [T, size]`, which may be a part of longer rows, in place."""
        ops.rms_norm_(x, self.weight, self.eps)

    def add(self, x: Tensor, residual: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """Add `x` to the residual stream: (the normed sum, the sum). Overwrites both arguments."""
        return ops.add_rms_norm(x, residual, self.weight, self.eps)


def norm_rows_(rows: Sequence[tuple[Tensor, RMSNorm]], num_shares: int, ops: Ops) -> None:
    """Normalise all `x [T, size]` in place, each by its norm, where `num_shares` workers have a part of every row.

    Parts that several workers hold count as often in the sum of squares as in the size, so the mean is that of the row.
    """
    if num_shares == 1:
        for x, norm in rows:
            norm.norm_(x, ops)
        return
    _, first = rows[0]
    ops.norm_shares_([(x, norm.weight) for x, norm in rows], num_shares, first.eps, ops.all_reduce_)


class LayerNorm(nn.Module):
    """Bring the last dimension to mean 0 and variance 1, then scale and shift it by learned vectors, if there are any.

    `has_weight` and `has_bias`: whether it is scaled, and shifted.
    """

    weight: Tensor

    def __init__(self, size: int, eps: float, dtype: torch.dtype, has_weight: bool = True, has_bias: bool = True):
        super().__init__()
        if has_weight:
            self.weight = meta_parameter((size,), dtype)
        else:
            self.register_buffer("weight", torch.ones(size, dtype=dtype, device="cpu"), persistent=False)
        self.bias = meta_parameter((size,), dtype) if has_bias else None
        self.eps = eps

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, size] -> the same
        return ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: Tensor, residual: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """As `RMSNorm.add`."""
        ops.add_(residual, x)
        return self(residual, ops), residual


Norm = RMSNorm | LayerNorm


def normed(norm: Norm | None, x: Tensor, ops: Ops) -> Tensor:  # [..., size] -> the same
    """The norm of `x`; None: there is none, so `x` itself."""
    return x if norm is None else cast(Tensor, norm(x, ops))


def added_and_normed(norm: Norm, x: Tensor, residual: Tensor | None, ops: Ops) -> tuple[Tensor, Tensor]:
    """(the norm of both together, both together); None: `x` is all of it."""
    return (norm(x, ops), x) if residual is None else norm.add(x, residual, ops)
