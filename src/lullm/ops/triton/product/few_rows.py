"""Products of one or two rows, whose time is one read of the weight: one or two sequences decode.

A program computes some outputs of both rows: it reads its rows of the weight once, in tiles, and loads the next tile
while it multiplies one. Sums are float32, of each lane first, then over the lanes. The first tile is loaded before the
kernel's inputs are there (`overlap`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import overlap_options, wait_for_inputs
from lullm.ops.triton.tile import FewRowsTile, few_rows_tile
from lullm.units import cdiv

MAX_ROWS = 2
MAX_INPUTS_OF_TWO = 3072
"""Two rows of 4,096 inputs (Qwen3-8B) took 1.02 to 1.24 times as long as cuBLAS's on an H200, shorter ones less."""


def is_served(x: Tensor, weight: Tensor) -> bool:
    """Whether `product` takes these operands: others are cuBLAS's."""
    return (
        len(x) <= MAX_ROWS
        and x.dim() == 2
        and (len(x) == 1 or x.shape[1] <= MAX_INPUTS_OF_TWO)
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
    )


@triton.jit
def _load_tile(places, start, inputs, weight_mask, INPUTS: tl.constexpr):
    mask = weight_mask[:, None] & (start + inputs < INPUTS)[None, :]
    return tl.load(places + start, mask=mask, other=0.0, eviction_policy="evict_first")


@triton.jit
def _few_rows_kernel(
    out_ptr,  # [NUM_ROWS, OUTPUTS]
    x_ptr,  # [NUM_ROWS, INPUTS]
    weight_ptr,  # [OUTPUTS, INPUTS]; if gated, the weight of gates, then that of ups
    bias_ptr,
    NUM_ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,  # the outputs are silu(gate) * up
    BLOCK_OUTPUTS: tl.constexpr,  # rows of the weight; if gated, each second one is of ups
    BLOCK_INPUTS: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    lanes = tl.arange(0, BLOCK_OUTPUTS)
    if IS_GATED:
        weight_mask = tl.program_id(0) * (BLOCK_OUTPUTS // 2) + lanes // 2 < OUTPUTS
        weight_rows = tl.program_id(0) * (BLOCK_OUTPUTS // 2) + lanes // 2 + lanes % 2 * OUTPUTS
    else:
        weight_rows = tl.program_id(0) * BLOCK_OUTPUTS + lanes
        weight_mask = weight_rows < OUTPUTS
    inputs = tl.arange(0, BLOCK_INPUTS)
    places = weight_ptr + weight_rows.to(tl.int64)[:, None] * INPUTS + inputs[None, :]
    weight = _load_tile(places, 0, inputs, weight_mask, INPUTS)
    wait_for_inputs(OVERLAPS)
    first = tl.zeros([BLOCK_OUTPUTS, BLOCK_INPUTS], tl.float32)
    second = tl.zeros([BLOCK_OUTPUTS, BLOCK_INPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_INPUTS):
        following = _load_tile(places, start + BLOCK_INPUTS, inputs, weight_mask, INPUTS)
        mask = start + inputs < INPUTS
        x = tl.load(x_ptr + start + inputs, mask=mask, other=0.0).to(tl.float32)
        factors = weight.to(tl.float32)
        first += factors * x[None, :]
        if NUM_ROWS > 1:
            y = tl.load(x_ptr + INPUTS + start + inputs, mask=mask, other=0.0).to(tl.float32)
            second += factors * y[None, :]
        weight = following
    _store(out_ptr, tl.sum(first, 1), bias_ptr, weight_rows, weight_mask, x_ptr, OUTPUTS, HAS_BIAS, IS_GATED,
           BLOCK_OUTPUTS)  # fmt: skip
    if NUM_ROWS > 1:
        _store(out_ptr + OUTPUTS, tl.sum(second, 1), bias_ptr, weight_rows, weight_mask, x_ptr, OUTPUTS, HAS_BIAS,
               IS_GATED, BLOCK_OUTPUTS)  # fmt: skip


@triton.jit
def _store(out_ptr, sums, bias_ptr, weight_rows, weight_mask, x_ptr, OUTPUTS: tl.constexpr, HAS_BIAS: tl.constexpr,
           IS_GATED: tl.constexpr, BLOCK_OUTPUTS: tl.constexpr):  # fmt: skip
    """Write the outputs of one row."""
    if HAS_BIAS:
        sums += tl.load(bias_ptr + weight_rows, mask=weight_mask, other=0.0).to(tl.float32)
    if IS_GATED:
        sums = sums.to(x_ptr.dtype.element_ty).to(tl.float32)  # as if they had been written
        gate, up = tl.split(tl.reshape(sums, [BLOCK_OUTPUTS // 2, 2]))
        out = gate / (1.0 + tl.exp(-gate)) * up
        outputs = tl.program_id(0) * (BLOCK_OUTPUTS // 2) + tl.arange(0, BLOCK_OUTPUTS // 2)
        tl.store(out_ptr + outputs, out.to(out_ptr.dtype.element_ty), mask=outputs < OUTPUTS)
    else:
        tl.store(out_ptr + weight_rows, sums.to(out_ptr.dtype.element_ty), mask=weight_mask)


FEW_ROWS = Kernel(_few_rows_kernel)


def product(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out_dtype: torch.dtype | None = None,
    is_gated: bool = False,
    tile: FewRowsTile | None = None,
) -> Tensor:
    """`x [R, I] @ weight.T`, for operands that `is_served` accepts.

    Args:
        is_gated: `weight [2 * O, I]` is of gates, then of ups; the result is `silu(gate) * up`.
        tile: None: the shipped one.
    """
    x = x.contiguous()
    num_rows, num_inputs = x.shape
    num_outputs = len(weight) // 2 if is_gated else len(weight)
    out = torch.empty((num_rows, num_outputs), dtype=out_dtype or x.dtype, device=x.device)
    if num_rows:
        tile = tile or few_rows_tile(len(weight), num_inputs, num_rows)
        FEW_ROWS[(cdiv(len(weight), tile.block_outputs),)](
            out,
            x,
            weight,
            weight if bias is None else bias,
            NUM_ROWS=num_rows,
            OUTPUTS=num_outputs,
            INPUTS=num_inputs,
            HAS_BIAS=bias is not None,
            IS_GATED=is_gated,
            BLOCK_OUTPUTS=tile.block_outputs,
            BLOCK_INPUTS=tile.block_inputs,
            **overlap_options(),
            num_warps=tile.num_warps,
        )
    return out
