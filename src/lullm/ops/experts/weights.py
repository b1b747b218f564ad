"""ExpertWeights: the matrices of a layer's experts, and the function that joins gates and ups."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lullm.config.layer.experts import ClampedGate
from lullm.ops import activation
from lullm.ops.quantized.weight import Layout
from lullm.types.arithmetic import Activation


@dataclass(frozen=True, eq=False)
class Matrices:
    """One matrix per expert, all of one shape, at fixed addresses.

    Args:
        weights: `[out, in]`, or the storage of a quantized weight.
        biases: `[out]`; None: no biases.
        layouts: of quantized weights; None: the weight is not quantized.
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
        """Whether all have the same layout. A checkpoint may leave single experts unquantized."""
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
class ExpertSlots:
    """The places of a layer's experts: each has a slot, and a worker has a run of slots.

    Both tensors change in place: recorded steps hold their addresses.

    Args:
        of_experts: `[E]` int64, the slot of each expert. load: `[E]` int64, the tokens of each expert since the last
            clear.
        first: the first slot of this worker.
    """

    of_experts: Tensor
    load: Tensor
    first: int = 0

    @classmethod
    def in_order(cls, num_experts: int, first: int = 0) -> "ExpertSlots":
        """The slot of each expert is its number."""
        numbers = torch.arange(num_experts, device="cpu")
        return cls(numbers, torch.zeros_like(numbers), first)

    def __len__(self) -> int:
        return len(self.of_experts)

    def count(self, experts: Tensor) -> None:
        """Add tokens to the load. `experts`: those of each token. In torch, on any device."""
        self.load.add_(experts.flatten().bincount(minlength=len(self)))


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeights:
    """`down(gate(gate_up(x)))` of every expert of this worker.

    Args:
        gate_up: matrices `[2 * I, H]`, gates first. down: matrices `[H, I]`. Both by slot.
        gate: `activation(gate) * up`, or a `ClampedGate`.
        slots: of all experts.
        is_gated: if False, `gate_up` are ups `[I, H]`, and `gate` is their activation.
    """

    gate_up: Matrices
    down: Matrices
    gate: Activation | ClampedGate
    slots: ExpertSlots
    is_gated: bool = True

    @property
    def own(self) -> slice:
        """The slots of this worker."""
        return slice(self.slots.first, self.slots.first + len(self.down.weights))

    def join(self, gate_up: Tensor) -> Tensor:
        """Gates and ups `[N, 2 * I]`, or ups `[N, I]`, -> `[N, I]`, in torch on any device."""
        if not isinstance(self.gate, ClampedGate):
            return (activation.gate if self.is_gated else activation.activate)(gate_up, self.gate)
        gates, ups = gate_up.float().chunk(2, dim=-1)
        gates, ups = gates.clamp(max=self.gate.limit), ups.clamp(-self.gate.limit, self.gate.limit)
        return ((ups + 1) * gates * (gates * self.gate.alpha).sigmoid()).to(gate_up.dtype)
