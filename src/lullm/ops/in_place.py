"""The ops that change elements in place, in torch, on any device."""

from torch import Tensor


def add_(total: Tensor, x: Tensor) -> None:
    """See `Ops.add_`."""
    total.add_(x)


def scale_(x: Tensor, factor: float) -> None:
    """See `Ops.scale_`."""
    x.mul_(factor)


def soft_cap_(x: Tensor, cap: float) -> None:
    """See `Ops.soft_cap_`."""
    x.div_(cap).tanh_().mul_(cap)
