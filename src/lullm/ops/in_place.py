"""The ops that change elements in place, in torch, on any device."""

from torch import Tensor
from torch.nn.functional import silu

from lullm.types.arithmetic import Gating


def add_(total: Tensor, x: Tensor) -> None:
    """See `Ops.add_`."""
    total.add_(x)


def scale_(x: Tensor, factor: float) -> None:
    """See `Ops.scale_`."""
    x.mul_(factor)


def soft_cap_(x: Tensor, cap: float) -> None:
    """See `Ops.soft_cap_`."""
    x.div_(cap).tanh_().mul_(cap)


def multiply_(y: Tensor, x: Tensor, gating: Gating | None) -> None:
    """See `Ops.multiply_`."""
    if gating is not None:
        x = (silu(x.float()) if gating == "silu" else x.float().sigmoid()).to(y.dtype)
    y.mul_(x)
