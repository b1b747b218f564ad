"""Feed-forward layers: gated (SwiGLU, GeGLU and so on, https://arxiv.org/abs/2002.05202), and of one activation."""

import torch
from torch import Tensor, nn

from lullm.nn.linear import FusedLinear, Linear, meta_parameter
from lullm.ops.table import Ops
from lullm.types.arithmetic import Activation


class GatedMLP(nn.Module):
    """`down(activation(gate(x)) * up(x))`."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Activation, bias: bool, dtype: torch.dtype
    ):
        super().__init__()
        self.activation = activation
        self.gate_up_proj = FusedLinear(hidden_size, (intermediate_size, intermediate_size), bias, dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        return self.down_proj(self.gate_up_proj.gate(x, self.activation, ops), ops)


class CutGatedMLP(GatedMLP):
    """A gated MLP in which few gates of a row are not 0: those more than `cutoff` standard deviations above its mean.

    That bound is subtracted from them.

    Args:
        num_shares: workers that have a part of every row. The mean is that of the whole row.
    """

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        activation: Activation,
        bias: bool,
        dtype: torch.dtype,
        cutoff: float,
        num_shares: int,
    ):
        super().__init__(hidden_size, intermediate_size, activation, bias, dtype)
        self.cutoff, self.num_all = cutoff, intermediate_size * num_shares

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        gates, ups = self.gate_up_proj(x, ops).chunk(2, dim=-1)  # [T, I] each
        mean = self._mean(gates.float(), ops)
        deviation = self._mean((gates.float() - mean).square(), ops).sqrt()
        kept = (gates.float() - (mean + self.cutoff * deviation)).clamp(min=0).to(gates.dtype)
        activated = ops.activate(kept, self.activation)
        ops.multiply_(activated, ups, None)
        return self.down_proj(activated, ops)

    def _mean(self, x: Tensor, ops: Ops) -> Tensor:  # [T, I] -> [T, 1]
        total = x.sum(-1, keepdim=True)
        ops.all_reduce_(total)
        return total / self.num_all


class Xielu(nn.Module):
    """An activation with learned parameters of each layer (xIELU, https://arxiv.org/abs/2411.13010).

    `p x^2 + beta x` above 0, `n (expm1(min(x, eps)) - x) + beta x` below, with `p = softplus(alpha_p)` and `n = beta +
    softplus(alpha_n)`.
    """

    def __init__(self, dtype: torch.dtype):
        super().__init__()
        self.alpha_p, self.alpha_n = meta_parameter((1,), dtype), meta_parameter((1,), dtype)
        self.beta, self.eps = meta_parameter((), dtype), meta_parameter((), dtype)


class XieluMLP(nn.Module):
    """`fc2(act_fn(fc1(x)))` with a learned activation."""

    def __init__(self, hidden_size: int, intermediate_size: int, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.fc1 = Linear(hidden_size, intermediate_size, bias, dtype)
        self.act_fn = Xielu(dtype)
        self.fc2 = Linear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        inner, own = self.fc1(x, ops), self.act_fn
        ops.xielu_(inner, own.alpha_p, own.alpha_n, own.beta, own.eps)
        return self.fc2(inner, ops)


class MLP(nn.Module):
    """`fc2(activation(fc1(x)))`."""

    def __init__(
        self, hidden_size: int, intermediate_size: int, activation: Activation, bias: bool, dtype: torch.dtype
    ):
        super().__init__()
        self.activation = activation
        self.fc1 = Linear(hidden_size, intermediate_size, bias, dtype)
        self.fc2 = Linear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        return self.fc2(ops.activate(self.fc1(x, ops), self.activation), ops)
