"""The parts of which towers and connectors are built, beside those of `nn`."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from lullm.config.vision.vision import TowerConfig, TowerNorm, VisionActivation
from lullm.nn.linear import PlainLinear, meta_parameter
from lullm.nn.norm import LayerNorm, RMSNorm
from lullm.ops.table import Ops
from lullm.types.arithmetic import Activation

_ACTIVATIONS: dict[VisionActivation, Activation] = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
}
NORMS: dict[TowerNorm, type[LayerNorm] | type[RMSNorm]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}


def activate(x: Tensor, activation: VisionActivation, ops: Ops) -> Tensor:  # [P, N] -> the same
    """By element."""
    if activation == "quick_gelu":  # an approximation of GELU (https://arxiv.org/abs/1606.08415)
        return x * torch.sigmoid(1.702 * x)
    return ops.activate(x, _ACTIVATIONS[activation])


def dense(in_features: int, out_features: int, bias: bool, dtype: torch.dtype) -> "PlainLinear | UnpackedLinear":
    """`x @ weight.T + bias`, called with `(x, ops)`.

    A tile of 729 patches is a product as wide as a chunk of a prompt, so matrices are packed and multiplied as the
    decoder's are. But native products are made for inputs in groups of 32: 3420 -> 1280 of Qwen2.5-VL's tower took 312
    ms for 1,564 patches on a core with AMX, torch's 15.
    """
    kind = UnpackedLinear if in_features % 32 else PlainLinear
    return kind(in_features, out_features, bias, dtype)


def tower_matrix(
    config: TowerConfig, in_features: int, out_features: int, bias: bool, dtype: torch.dtype
) -> "PlainLinear | UnpackedLinear | ClippedLinear":
    """A matrix of a tower's layer."""
    if config.is_clipped:
        return ClippedLinear(in_features, out_features, bias, dtype)
    return dense(in_features, out_features, bias, dtype)


class ClippedLinear(nn.Module):
    """A matrix whose inputs and results are kept within bounds (Gemma 4), which are learned numbers."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.linear = dense(in_features, out_features, bias, dtype)
        self.input_min, self.input_max, self.output_min, self.output_max = (meta_parameter((), dtype) for _ in range(4))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [P, in] -> [P, out]
        product: Tensor = self.linear(x.clamp(self.input_min, self.input_max), ops)
        return product.clamp(self.output_min, self.output_max)


class UnpackedLinear(nn.Module):
    """A matrix in a checkpoint's order, multiplied by torch."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((out_features, in_features), dtype)
        self.bias = meta_parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [P, in] -> [P, out]
        return functional.linear(x, self.weight, self.bias)
