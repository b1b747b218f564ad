"""Feed-forward layers: gated (SwiGLU, GeGLU and so on, https://arxiv.org/abs/2002.05202), and of one activation."""

import torch
from torch import Tensor, nn

from lullm.config.experts import ClampedGate
from lullm.nn.linear import FusedLinear, Linear
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


class ClampedMLP(nn.Module):
    """`down((up(x) + 1) * gate(x) * sigmoid(alpha * gate(x)))` of clamped gates and ups; see `ClampedGate`.

    The gate is computed in float32 and rounded once.
    """

    def __init__(self, hidden_size: int, intermediate_size: int, gate: ClampedGate, bias: bool, dtype: torch.dtype):
        super().__init__()
        self.gate = gate
        self.gate_up_proj = FusedLinear(hidden_size, (intermediate_size, intermediate_size), bias, dtype)
        self.down_proj = Linear(intermediate_size, hidden_size, bias, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, H] -> [T, H]
        alpha, limit = self.gate.alpha, self.gate.limit
        gates, ups = self.gate_up_proj(x, ops).float().chunk(2, dim=-1)  # [T, I] each
        gates, ups = gates.clamp(max=limit), ups.clamp(-limit, limit)
        # By the ops' silu: the bits of torch's sigmoid depend on where in its argument an element stands.
        gated = ops.activate(gates * alpha, "silu").mul_(ups + 1).div_(alpha)
        return self.down_proj(gated.to(x.dtype), ops)


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
