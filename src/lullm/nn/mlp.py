"""Feed-forward layers: gated (SwiGLU, GeGLU and so on, https://arxiv.org/abs/2002.05202), and of one activation."""

import torch
from torch import Tensor, nn

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
