"""Norms, the gated activation, and the ops for which torch is fastest on a GPU: embedding and linear (cuBLAS), but for
one or two rows (`product/few_rows.py`).

A program holds one row of a norm, so each row is read once and written once.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn import functional as F

from lullm.ops.activation import gate
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import overlap_options, wait_for_inputs
from lullm.ops.triton.product import few_rows
from lullm.ops.triton.tile import ACTIVATION_BLOCK, num_row_warps
from lullm.types.arithmetic import Activation
from lullm.units import cdiv, next_power_of_2


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(token_ids, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return few_rows.product(x, weight, bias) if few_rows.is_served(x, weight) else F.linear(x, weight, bias)


def logits(x: Tensor, weight: Tensor) -> Tensor:
    if few_rows.is_served(x, weight):
        return few_rows.product(x, weight, None, torch.float32)
    return F.linear(x, weight).float()


def gated_linear(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    if activation == "silu" and few_rows.is_served(x, gate_up_weight):
        return few_rows.product(x, gate_up_weight, bias, is_gated=True)
    gate_up = linear(x, gate_up_weight, bias)
    return silu_mul(gate_up) if activation == "silu" else gate(gate_up, activation)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


@triton.jit
def _rms_norm_kernel(
    out_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    eps,
    x_stride,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < SIZE
    x = tl.load(x_ptr + row * x_stride + columns, mask=mask, other=0.0)
    if HAS_RESIDUAL:
        places = residual_ptr + row * SIZE + columns
        residual = tl.load(places, mask=mask, other=0.0)
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(places, x, mask=mask)
    x32 = x.to(tl.float32)
    normed = (x32 * tl.rsqrt(tl.sum(x32 * x32, 0) / SIZE + eps)).to(x.dtype)
    weight = tl.load(weight_ptr + columns, mask=mask, other=0.0)
    out = (weight.to(tl.float32) * normed.to(tl.float32)).to(x.dtype)
    tl.store(out_ptr + row * SIZE + columns, out, mask=mask)


RMS_NORM = Kernel(_rms_norm_kernel)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    size = x.shape[-1]
    if x.dim() != 2 or x.stride(1) != 1:
        return rms_norm(x.reshape(-1, size).contiguous(), weight, eps).view(x.shape)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch_rms_norm(out, x, None, weight, eps)
    return out


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> None:
    x.copy_(rms_norm(x, weight, eps))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Both results overwrite the arguments."""
    if not x.is_contiguous():
        x = x.contiguous()
    _launch_rms_norm(x, x, residual, weight, eps)
    return x, residual


def _launch_rms_norm(out: Tensor, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> None:
    num_rows, size = x.shape
    if not num_rows:
        return
    assert residual is None or residual.is_contiguous()
    block = next_power_of_2(size)
    RMS_NORM[(num_rows,)](
        out,
        x,
        x if residual is None else residual,
        weight,
        eps,
        x.stride(0),
        SIZE=size,
        BLOCK=block,
        HAS_RESIDUAL=residual is not None,
        **overlap_options(),
        num_warps=num_row_warps(block),
    )


@triton.jit
def _silu_mul_kernel(out_ptr, gate_up_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr):
    wait_for_inputs(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    places = gate_up_ptr + row * 2 * SIZE + columns
    gate = tl.load(places, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(places + SIZE, mask=mask, other=0.0).to(tl.float32)
    out = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out_ptr + row * SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=mask)


SILU_MUL = Kernel(_silu_mul_kernel)


def silu_mul(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of `gate_up [T, 2 * I]`, gates first -> `[T, I]`."""
    gate_up = gate_up.contiguous()
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((num_rows, size), dtype=gate_up.dtype, device=gate_up.device)
    if num_rows:
        block = min(ACTIVATION_BLOCK, next_power_of_2(size))
        SILU_MUL[(num_rows, cdiv(size, block))](out, gate_up, SIZE=size, BLOCK=block, **overlap_options(), num_warps=4)
    return out
