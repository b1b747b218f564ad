"""Products whose bits do not depend on the number of rows, for `batch_invariant`. cuBLAS picks a kernel by that number.

One tile serves all numbers of rows. A program computes a tile of rows and outputs and adds up all inputs in order, so a
row's sums depend only on the row and the weight (https://thinkingmachines.ai/blog, "Defeating nondeterminism in LLM
inference", 2025).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.activation import gate
from lullm.ops.triton.elementwise import silu_mul
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.tile import linear_tile
from lullm.types.arithmetic import Activation
from lullm.units import cdiv


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias, x.dtype)


def logits(x: Tensor, weight: Tensor) -> Tensor:
    return _product(x, weight, None, torch.float32)


def gated_linear(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    gate_up = linear(x, gate_up_weight, bias)
    return silu_mul(gate_up) if activation == "silu" else gate(gate_up, activation)


@triton.jit(do_not_specialize=["num_rows"])
def _linear_kernel(
    out_ptr,  # [T, OUTPUTS]
    x_ptr,  # [T, INPUTS]
    weight_ptr,  # [OUTPUTS, INPUTS]
    bias_ptr,  # [OUTPUTS]
    num_rows,
    x_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    rows = (tl.program_id(1) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS)).to(tl.int64)
    outputs = (tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)).to(tl.int64)
    row_mask = rows < num_rows
    output_mask = outputs < OUTPUTS
    acc = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_INPUTS):
        inputs = start + tl.arange(0, BLOCK_INPUTS)
        input_mask = inputs < INPUTS
        x_places = x_ptr + rows[:, None] * x_stride + inputs[None, :]
        weight_places = weight_ptr + outputs[None, :] * INPUTS + inputs[:, None]
        x = tl.load(x_places, mask=row_mask[:, None] & input_mask[None, :], other=0.0)
        weight = tl.load(weight_places, mask=output_mask[None, :] & input_mask[:, None], other=0.0)
        acc = tl.dot(x, weight, acc, input_precision=PRECISION)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + outputs, mask=output_mask, other=0.0).to(tl.float32)[None, :]
    places = out_ptr + rows[:, None] * OUTPUTS + outputs[None, :]
    tl.store(places, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & output_mask[None, :])


LINEAR = Kernel(_linear_kernel)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype) -> Tensor:
    if x.stride(1) != 1:
        x = x.contiguous()
    assert weight.is_contiguous()
    num_rows, (num_outputs, num_inputs) = len(x), weight.shape
    out = torch.empty(num_rows, num_outputs, dtype=out_dtype, device=x.device)
    if num_rows:
        tile = linear_tile(x.dtype)
        LINEAR[(cdiv(num_outputs, tile.block_outputs), cdiv(num_rows, tile.block_rows))](
            out,
            x,
            weight,
            weight if bias is None else bias,
            num_rows,
            x.stride(0),
            OUTPUTS=num_outputs,
            INPUTS=num_inputs,
            HAS_BIAS=bias is not None,
            BLOCK_ROWS=tile.block_rows,
            BLOCK_OUTPUTS=tile.block_outputs,
            BLOCK_INPUTS=tile.block_inputs,
            PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
            num_warps=tile.num_warps,
            num_stages=tile.num_stages,
        )
    return out
