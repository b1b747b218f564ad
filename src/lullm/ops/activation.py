"""The activations of an MLP in torch, on any device."""

from torch import Tensor
from torch.nn import functional as F

from lullm.types.arithmetic import Activation


def activate(x: Tensor, activation: Activation) -> Tensor:
    """See `Ops.activate`."""
    if activation == "silu":
        return F.silu(x)
    if activation == "relu":
        return F.relu(x)
    if activation == "relu2":
        return F.relu(x).square()
    return F.gelu(x, approximate="tanh" if activation == "gelu_tanh" else "none")


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    """`activation(gate) * up` of `gate_up [T, 2 * I]`, gates first -> `[T, I]`."""
    gates, ups = gate_up.chunk(2, dim=-1)
    return activate(gates, activation).mul_(ups)
