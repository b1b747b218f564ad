"""The mixture of experts without a wait for the device, so that a graph can record it: four launches and the
activation.

A token and one of its experts are a pair. `_sort_kernel` orders the pairs by the slot of their expert.
`_product_kernel` multiplies tiles of pairs of one expert, twice: first rows of the step into sorted rows of gates and
ups, then the activations into one row for each pair. `_sum_kernel` adds up a token's rows. Launches are sized for the
most tiles that the number of pairs can need; programs without a tile end at once. A table holds the addresses of the
weights, so experts stay separate parameters.
"""

from weakref import WeakKeyDictionary

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights, Matrices
from lullm.ops.triton.elementwise import silu_mul
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.tile import LinearTile, expert_tiles, linear_tile
from lullm.units import cdiv, next_power_of_2

_SORT_BLOCK = 1024
"""Pairs per turn of the sort."""

_SUM_BLOCK = 1024
"""Elements of a row per program of the sum."""

_addresses: WeakKeyDictionary[Matrices, tuple[Tensor, Tensor]] = WeakKeyDictionary()
"""Addresses on the device, of the weights and of the biases: fixed while the matrices live."""


@triton.jit(do_not_specialize=["num_pairs"])
def _sort_kernel(
    starts_ptr,  # [NUM_HERE] int32, written: where the pairs of a slot begin
    counts_ptr,  # [NUM_HERE] int32, written
    order_ptr,  # [num_pairs] int32, written: the numbers of the pairs, by slot
    load_ptr,  # [E] int64, added to
    experts_ptr,  # [T, K] int64
    slot_of_expert_ptr,  # [E] int64
    num_pairs,
    FIRST: tl.constexpr,  # first slot of this worker
    NUM_HERE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    expert = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    slot = tl.load(slot_of_expert_ptr + expert)
    num_own = tl.zeros([], tl.int32)
    num_before = tl.zeros([], tl.int32)
    for start in range(0, num_pairs, BLOCK):
        mask = start + lanes < num_pairs
        chosen = tl.load(experts_ptr + start + lanes, mask=mask, other=-1)
        slots = tl.load(slot_of_expert_ptr + chosen, mask=mask, other=-1)
        num_own += tl.sum((chosen == expert).to(tl.int32), 0)
        num_before += tl.sum((mask & (slots >= FIRST) & (slots < slot)).to(tl.int32), 0)
    tl.store(load_ptr + expert, tl.load(load_ptr + expert) + num_own)
    here = slot - FIRST
    if (here >= 0) & (here < NUM_HERE):
        tl.store(starts_ptr + here, num_before)
        tl.store(counts_ptr + here, num_own)
        for start in range(0, num_pairs, BLOCK):
            chosen = tl.load(experts_ptr + start + lanes, mask=start + lanes < num_pairs, other=-1)
            is_own = (chosen == expert).to(tl.int32)
            tl.store(order_ptr + num_before + tl.cumsum(is_own, 0) - 1, start + lanes, mask=is_own > 0)
            num_before += tl.sum(is_own, 0)


SORT = Kernel(_sort_kernel)


@triton.jit(do_not_specialize=["x_stride"])
def _product_kernel(
    out_ptr,  # [num_pairs, OUTPUTS]
    x_ptr,  # [T, INPUTS], or [num_pairs, INPUTS]
    weight_table_ptr,  # [NUM_HERE] int64: addresses of [OUTPUTS, INPUTS]
    bias_table_ptr,  # of [OUTPUTS]
    starts_ptr,
    counts_ptr,
    order_ptr,
    x_stride,
    NUM_USED: tl.constexpr,
    NUM_HERE: tl.constexpr,
    BLOCK_HERE: tl.constexpr,  # a power of two, at least NUM_HERE
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    GATHERS: tl.constexpr,  # x has a row per token and out one per place in the order; if False, the reverse
    HAS_BIAS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    tile = tl.program_id(1)
    slots = tl.arange(0, BLOCK_HERE)
    counts = tl.load(counts_ptr + slots, mask=slots < NUM_HERE, other=0)
    num_tiles = (counts + BLOCK_ROWS - 1) // BLOCK_ROWS
    slot = tl.sum((tl.cumsum(num_tiles, 0) <= tile).to(tl.int32), 0)
    if slot >= NUM_HERE:
        return
    first = (tile - tl.sum(tl.where(slots < slot, num_tiles, 0), 0)) * BLOCK_ROWS
    rows = first + tl.arange(0, BLOCK_ROWS)
    row_mask = rows < tl.load(counts_ptr + slot)
    places = tl.load(starts_ptr + slot) + rows
    pairs = tl.load(order_ptr + places, mask=row_mask, other=0)
    if GATHERS:
        from_rows, to_rows = (pairs // NUM_USED).to(tl.int64), places.to(tl.int64)
    else:
        from_rows, to_rows = places.to(tl.int64), pairs.to(tl.int64)
    outputs = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    output_mask = outputs < OUTPUTS
    weight_ptr = tl.load(weight_table_ptr + slot).to(tl.pointer_type(x_ptr.dtype.element_ty))
    weight_ptr = tl.multiple_of(weight_ptr, 16)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_OUTPUTS], tl.float32)
    for start in range(0, INPUTS, BLOCK_INPUTS):
        inputs = start + tl.arange(0, BLOCK_INPUTS)
        input_mask = inputs < INPUTS
        x_places = x_ptr + from_rows[:, None] * x_stride + inputs[None, :]
        weight_places = weight_ptr + outputs.to(tl.int64)[None, :] * INPUTS + inputs[:, None]
        x = tl.load(x_places, mask=row_mask[:, None] & input_mask[None, :], other=0.0)
        weight = tl.load(weight_places, mask=output_mask[None, :] & input_mask[:, None], other=0.0)
        acc = tl.dot(x, weight, acc, input_precision=PRECISION)
    if HAS_BIAS:
        bias_ptr = tl.load(bias_table_ptr + slot).to(tl.pointer_type(x_ptr.dtype.element_ty))
        acc += tl.load(bias_ptr + outputs, mask=output_mask, other=0.0).to(tl.float32)[None, :]
    out_places = out_ptr + to_rows[:, None] * OUTPUTS + outputs[None, :]
    tl.store(out_places, acc.to(out_ptr.dtype.element_ty), mask=row_mask[:, None] & output_mask[None, :])


PRODUCT = Kernel(_product_kernel)


@triton.jit
def _sum_kernel(
    out_ptr,  # [T, SIZE]
    parts_ptr,  # [T, K, SIZE]: rows of other workers' experts are never read
    shares_ptr,  # [T, K] float32
    experts_ptr,
    slot_of_expert_ptr,
    shared_ptr,  # [T, SIZE]
    shared_gate_ptr,  # [T, 1]
    SIZE: tl.constexpr,
    NUM_USED: tl.constexpr,
    FIRST: tl.constexpr,
    NUM_HERE: tl.constexpr,
    HAS_SHARED: tl.constexpr,
    HAS_GATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    total = tl.zeros([BLOCK], tl.float32)
    for number in range(NUM_USED):
        pair = row * NUM_USED + number
        here = tl.load(slot_of_expert_ptr + tl.load(experts_ptr + pair)) - FIRST
        if (here >= 0) & (here < NUM_HERE):
            part = tl.load(parts_ptr + pair * SIZE + columns, mask=mask, other=0.0)
            total += part.to(tl.float32) * tl.load(shares_ptr + pair)
    if HAS_SHARED:
        shared = tl.load(shared_ptr + row * SIZE + columns, mask=mask, other=0.0).to(tl.float32)
        if HAS_GATE:
            shared = shared / (1.0 + tl.exp(-tl.load(shared_gate_ptr + row).to(tl.float32)))
        total += shared
    tl.store(out_ptr + row * SIZE + columns, total.to(out_ptr.dtype.element_ty), mask=mask)


SUM = Kernel(_sum_kernel)


def experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    """See `Ops.experts`. Weights are not quantized on a GPU."""
    few, many = expert_tiles(x.dtype)
    is_few = routes.experts.numel() <= 2 * few.block_rows * len(weights.down.weights)
    return _mix(x, routes, weights, shared, shared_gate, few if is_few else many)


def every_experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    """See `Ops.compile_experts`."""
    for tile in expert_tiles(x.dtype):
        out = _mix(x, routes, weights, shared, shared_gate, tile)
    return out


def invariant_experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    """The same with one tile, so that a row's bits depend only on the row."""
    return _mix(x, routes, weights, shared, shared_gate, linear_tile(x.dtype))


def _mix(
    x: Tensor,
    routes: Routes,
    weights: ExpertWeights,
    shared: Tensor | None,
    shared_gate: Tensor | None,
    tile: LinearTile,
) -> Tensor:
    (num_rows, size), slots, num_here = x.shape, weights.slots, len(weights.down.weights)
    chosen, num_used, num_pairs = routes.experts, routes.experts.shape[1], routes.experts.numel()
    out = torch.empty((num_rows, size), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    places = torch.empty(2 * num_here + num_pairs, dtype=torch.int32, device=x.device)
    sorted_pairs = places[:num_here], places[num_here : 2 * num_here], places[2 * num_here :]
    SORT[(len(slots),)](
        *sorted_pairs,
        slots.load,
        chosen,
        slots.of_experts,
        num_pairs,
        FIRST=slots.first,
        NUM_HERE=num_here,
        BLOCK=_SORT_BLOCK,
        num_warps=4,
    )
    gate_up = _product(x, weights.gate_up, sorted_pairs, num_used, len(slots), True, tile)
    is_silu = weights.is_gated and weights.gate == "silu"
    joined = silu_mul(gate_up) if is_silu else weights.join(gate_up)
    parts = _product(joined, weights.down, sorted_pairs, num_used, len(slots), False, tile)
    SUM[(num_rows, cdiv(size, _SUM_BLOCK))](
        out,
        parts,
        routes.shares,
        chosen,
        slots.of_experts,
        out if shared is None else shared.contiguous(),
        out if shared_gate is None else shared_gate,
        SIZE=size,
        NUM_USED=num_used,
        FIRST=slots.first,
        NUM_HERE=num_here,
        HAS_SHARED=shared is not None,
        HAS_GATE=shared_gate is not None,
        BLOCK=_SUM_BLOCK,
        num_warps=4,
    )
    return out


def _product(
    x: Tensor,
    matrices: Matrices,
    sorted_pairs: tuple[Tensor, ...],
    num_used: int,
    num_all: int,
    gathers: bool,
    tile: LinearTile,
) -> Tensor:
    if x.stride(1) != 1:
        x = x.contiguous()
    num_pairs, num_here = len(sorted_pairs[2]), len(matrices.weights)
    num_outputs, num_inputs = matrices.shape
    new = torch.empty if num_here == num_all else torch.zeros  # rows of other workers' experts are never written
    out = new((num_pairs, num_outputs), dtype=x.dtype, device=x.device)
    num_tiles = min(num_pairs, num_pairs // tile.block_rows + num_here)
    PRODUCT[(cdiv(num_outputs, tile.block_outputs), num_tiles)](
        out,
        x,
        *_tables(matrices),
        *sorted_pairs,
        x.stride(0),
        NUM_USED=num_used,
        NUM_HERE=num_here,
        BLOCK_HERE=next_power_of_2(num_here),
        OUTPUTS=num_outputs,
        INPUTS=num_inputs,
        GATHERS=gathers,
        HAS_BIAS=matrices.biases is not None,
        BLOCK_ROWS=tile.block_rows,
        BLOCK_OUTPUTS=tile.block_outputs,
        BLOCK_INPUTS=tile.block_inputs,
        PRECISION="ieee" if x.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def _tables(matrices: Matrices) -> tuple[Tensor, Tensor]:
    """The addresses on the device, made at the first step, before any recording."""
    found = _addresses.get(matrices)
    if found is None:
        weights, biases = matrices.weights, matrices.biases or matrices.weights
        assert all(layout is None for layout in matrices.layouts), "quantized weights are decoded for a GPU"
        assert all(weight.is_contiguous() and weight.data_ptr() % 16 == 0 for weight in weights)
        device = weights[0].device
        found = _addresses[matrices] = (
            torch.tensor([weight.data_ptr() for weight in weights], dtype=torch.int64, device=device),
            torch.tensor([bias.data_ptr() for bias in biases], dtype=torch.int64, device=device),
        )
    return found
