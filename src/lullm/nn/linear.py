"""Layers around one matrix, which may be quantized; `FusedLinear` holds several that share their input as one."""

from typing import Literal

import torch
from torch import Tensor, nn

from lullm.ops.lora.weights import LoraWeights
from lullm.ops.quantized.weight import Layout, QuantizedLayout
from lullm.ops.table import Ops
from lullm.types.arithmetic import Activation


def meta_parameter(shape: tuple[int, ...], dtype: torch.dtype) -> nn.Parameter:
    """A parameter that has a shape and no memory yet."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)


class Matrix(nn.Module):
    """Owner of a `weight [rows, columns]` of `dtype`, or, once `layout` is set, of quantized storage of that shape.

    `lora`: adapters that are added to its products, if it may have any.
    """

    def __init__(self, num_rows: int, num_columns: int, dtype: torch.dtype):
        super().__init__()
        self.weight = meta_parameter((num_rows, num_columns), dtype)
        self.dtype = dtype
        self.num_rows, self.num_columns = num_rows, num_columns
        self.layout: Layout | None = None
        self.lora: LoraWeights | None = None

    def quantize(self, bits: Literal[8, 4]) -> None:
        """Replace the weight, which has no memory yet, by storage of `bits`."""
        self.lay_out(QuantizedLayout(bits, *self.weight.shape))

    def lay_out(self, layout: Layout) -> None:
        """Replace the weight, which has no memory yet, by storage of this layout."""
        assert self.weight.is_meta and self.layout is None, "quantized as it is filled, not afterwards"
        self.layout = layout
        self.weight = meta_parameter(layout.shape, torch.uint8)

    def multiply(self, x: Tensor, bias: Tensor | None, ops: Ops) -> Tensor:  # [T, columns] -> [T, rows]
        if self.layout is None:
            y = ops.linear(x, self.weight, bias)
        else:
            y = ops.quantized_linear(x, self.weight, self.layout, bias)
        if self.lora is not None:
            ops.add_lora_(y, x, self.lora)
        return y


class Linear(Matrix):
    """`x @ weight.T + bias`; weight `[out, in]`."""

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype):
        super().__init__(out_features, in_features, dtype)
        self.bias = meta_parameter((out_features,), dtype) if bias else None

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [T, in] -> [T, out]
        return self.multiply(x, self.bias, ops)


class PlainLinear(Linear):
    """One that `quantization` leaves as it is: of what reads pictures, as in vLLM."""


class FusedLinear(Linear):
    """Matrices stacked along their outputs: one multiplication instead of several small ones.

    `part_sizes` are the rows of the parts in order; a `Fusion` rule names the parts as a checkpoint does.
    `shared_sizes` are the sizes of the pieces (parts, or parts of parts) that are divided between workers.
    """

    def __init__(
        self,
        in_features: int,
        part_sizes: tuple[int, ...],
        bias: bool,
        dtype: torch.dtype,
        shared_sizes: tuple[int, ...] | None = None,
    ):
        super().__init__(in_features, sum(part_sizes), bias, dtype)
        self.part_sizes = part_sizes
        self.shared_sizes = shared_sizes or part_sizes

    def gate(self, x: Tensor, activation: Activation, ops: Ops) -> Tensor:  # [T, in] -> [T, out / 2]
        """`activation(gate) * up`, for the two parts gate and up."""
        if self.lora is not None:  # also for rows without an adapter, whose bits must not depend on the others
            return ops.gate(self(x, ops), activation)
        if self.layout is None:
            return ops.gated_linear(x, self.weight, self.bias, activation)
        return ops.quantized_gated_linear(x, self.weight, self.layout, self.bias, activation)
