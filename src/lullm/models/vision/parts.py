"""The parts of which towers and connectors are built.

Their matrices are plain parameters, not `nn.linear.Matrix`: they are neither quantized nor packed, and torch multiplies
them. A tile of 729 patches is a product as wide as a chunk of a prompt.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerNorm, VisionActivation
from lullm.nn.linear import meta_parameter


def quick_gelu(x: Tensor) -> Tensor:
    """An approximation of GELU (https://arxiv.org/abs/1606.08415)."""
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[VisionActivation, Callable[[Tensor], Tensor]] = {
    "quick_gelu": quick_gelu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


class Dense(nn.Module):
    """`x @ weight.T + bias`."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((out_features, in_features), dtype)
        self.bias = meta_parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:  # [..., in] -> [..., out]
        return functional.linear(x, self.weight, self.bias)


class LayerNorm(nn.Module):
    """Over the last dimension."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.bias = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., size] -> the same
        return functional.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Over the last dimension, by the root mean square alone; in float32 up to the weight, as where it was trained."""

    def __init__(self, size: int, eps: float, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((size,), dtype)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # [..., size] -> the same
        exact = x.float()
        return self.weight * (exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


NORMS: dict[TowerNorm, type[LayerNorm] | type[RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
