"""The ops that change elements in place, in torch, on any device."""

import torch
from torch import Tensor

from lullm.ops.cache.layer_cache import HeadNorm


def add_(total: Tensor, x: Tensor) -> None:
    """See `Ops.add_`."""
    total.add_(x)


def scale_(x: Tensor, factor: float) -> None:
    """See `Ops.scale_`."""
    x.mul_(factor)


def multiply_(x: Tensor, factors: Tensor) -> None:
    """See `Ops.multiply_`."""
    x.mul_(factors)


def rotate_(x: Tensor, norm: HeadNorm | None, positions: Tensor, cos_sin_cache: Tensor) -> None:
    """See `Ops.rotate_`."""
    x32 = x.float()
    if norm is not None:
        normed = (x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + norm.eps)).to(x.dtype)
        x32 = (normed * norm.q_weight).float()
    cosines, sines = cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D/2] each
    first, second = x32.chunk(2, dim=-1)
    x.copy_(torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1))


def soft_cap_(x: Tensor, cap: float) -> None:
    """See `Ops.soft_cap_`."""
    x.div_(cap).tanh_().mul_(cap)
