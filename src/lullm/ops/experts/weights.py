"""ExpertWeights: the matrices of a layer's experts, and how gates and ups are joined between them."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from lullm.config.experts import ClampedGate
from lullm.ops import activation
from lullm.ops.quantized.weight import Layout
from lullm.types.arithmetic import Activation


@dataclass(frozen=True, eq=False)
class Matrices:
    """One matrix per expert, all of one shape, at addresses that stay.

    Args:
        weights: by expert, `[out, in]`, or the storage of a quantized weight.
        biases: by expert, `[out]`; None: there are none.
        layouts: by expert, of quantized weights; None: it is not quantized.
    """

    weights: Sequence[Tensor]
    biases: Sequence[Tensor] | None
    layouts: Sequence[Layout | None]

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        layout = self.layouts[0]
        if layout is not None:
            return layout.out_features, layout.in_features
        num_outputs, num_inputs = self.weights[0].shape
        return num_outputs, num_inputs

    @cached_property
    def are_alike(self) -> bool:
        """Whether all lie in memory in one way. A checkpoint may leave single experts unquantized."""
        return all(layout == self.layouts[0] for layout in self.layouts)

    def bias_of(self, expert: int) -> Tensor | None:
        return None if self.biases is None else self.biases[expert]

    @cached_property
    def weight_pointers(self) -> ctypes.Array[ctypes.c_uint64]:
        """The addresses of the weights, for a native call."""
        return _pointers(self.weights)

    @cached_property
    def bias_pointers(self) -> ctypes.Array[ctypes.c_uint64] | None:
        return None if self.biases is None else _pointers(self.biases)


def _pointers(tensors: Sequence[Tensor]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """`down(gate(gate_up(x)))` of every expert.

    Args:
        gate_up: matrices `[2 * I, H]`, gates first. down: matrices `[H, I]`.
        gate: `activation(gate) * up`, or a `ClampedGate`.
        first, num_all: these are the experts from number `first` on, of so many; other workers have the others.
    """

    gate_up: Matrices
    down: Matrices
    gate: Activation | ClampedGate
    first: int = 0
    num_all: int = 0

    def __post_init__(self) -> None:
        if not self.num_all:
            object.__setattr__(self, "num_all", len(self.down.weights))

    def join(self, gate_up: Tensor) -> Tensor:
        """Gates and ups `[N, 2 * I]` -> `[N, I]`, in torch on any device."""
        if not isinstance(self.gate, ClampedGate):
            return activation.gate(gate_up, self.gate)
        gates, ups = gate_up.float().chunk(2, dim=-1)
        gates, ups = gates.clamp(max=self.gate.limit), ups.clamp(-self.gate.limit, self.gate.limit)
        return ((ups + 1) * gates * (gates * self.gate.alpha).sigmoid()).to(gate_up.dtype)
