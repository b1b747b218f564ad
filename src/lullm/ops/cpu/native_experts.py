"""The mixture of experts over the native library (see `recording`): routing, and products with experts that have rows.

How many experts are read is data of a call, not its shape: so a step with experts is recorded like any other.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from lullm.config.layer.experts import ClampedGate, ExpertsConfig
from lullm.ops import torch_cpu
from lullm.ops.cpu.native import ACTIVATIONS, DTYPES, activate, gate, linear, with_whole_rows
from lullm.ops.cpu.quantized_native import quantized_linear
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.experts import grouped, routing
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertSlots, ExpertWeights, Matrices
from lullm.units import cdiv

_torch_experts = grouped.experts_over(torch_cpu.linear)
_CLAMPED_SILU = 5
"""In `csrc/dtype.h`, beside `ACTIVATIONS`."""
_one_by_one = grouped.experts_over(linear, quantized_linear)


def route(products: Tensor, correction: Tensor | None, config: ExpertsConfig, factors: Tensor | None = None) -> Routes:
    if products.dtype not in DTYPES or products.stride(1) != 1 or config.scoring == "sparsemixer":
        return routing.route(products, correction, config, factors)
    num_rows, num_experts = products.shape
    experts = new_result((num_rows, config.num_used), torch.int64)
    shares = new_result((num_rows, config.num_used), torch.float32)
    groups = config.num_groups, config.num_used_groups, config.num_group_scores
    sizes = products.stride(0), num_rows, num_experts, config.num_used, *groups
    kinds = config.scoring == "sigmoid", config.normalizes, DTYPES[products.dtype]
    call("lullm_route", products, correction, factors, experts, shares, *sizes, config.scale, *kinds)
    return Routes(experts, shares)


_PIECE_BYTES = 31 << 20
"""Bytes of results that exist at once, to bound a step's memory: 2,048 tokens with 8 experts each have 64 MiB.
Pieces of half the size cost 3 %. From 32 MiB on malloc maps memory anew each time: 25,000 page faults in a prompt of
1,024 tokens, an eighth of its time."""


def _piece_len(count: int, num_bytes: int, least: int) -> int:
    """So many of `count` at a time, a multiple of 32, that pieces of `num_bytes` in all are equal and fit."""
    return max(least, cdiv(count, 32 * max(1, cdiv(num_bytes, _PIECE_BYTES))) * 32)


def experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    if x.dtype not in DTYPES:
        return _torch_experts(x, routes, weights, shared, shared_gate)
    if not (weights.gate_up.are_alike and weights.down.are_alike):
        return _one_by_one(x, routes, weights, shared, shared_gate)
    x = with_whole_rows(x)
    if shared is not None:
        shared = shared.contiguous()
    y = new_result(x.shape, x.dtype)
    num_used, size = routes.experts.shape[1], weights.down.shape[1]
    step = _piece_len(x.shape[0], x.shape[0] * num_used * size * x.dtype.itemsize, 256)
    for first in range(0, x.shape[0], step):
        part = slice(first, first + step)
        these = Routes(routes.experts[part], routes.shares[part])
        others = (t if t is None else t[part] for t in (shared, shared_gate))
        _mix_experts(y[part], x[part], these, weights, *others)
    return y


class _Sorted(NamedTuple):
    """The rows of a step by slot; see `lullm_sort_rows`."""

    starts: Tensor  # [E + 1]
    rows: Tensor  # [T * K]
    places: Tensor  # [T * K]


def _sort(routes: Routes, slots: ExpertSlots) -> _Sorted:
    num_rows, num_used = routes.experts.shape
    num_experts = len(slots)
    sizes = (num_experts + 1, num_rows * num_used, num_rows * num_used)
    found = _Sorted(*(new_result((size,), torch.int64) for size in sizes))
    inputs = routes.experts, slots.of_experts, slots.load
    if not call("lullm_sort_rows", *inputs, *found, num_rows, num_used, num_experts):
        raise IndexError(f"a token chose an expert outside the {num_experts}")
    return found


def _mix_experts(
    y: Tensor, x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> None:
    """Writes the results of some rows, some columns at a time."""
    places = _sort(routes, weights.slots)
    own = places.starts[weights.own.start : weights.own.stop + 1]
    gated = _gated(x, own, places.rows, weights)
    step = _piece_len(y.shape[1], gated.shape[0] * y.shape[1] * x.dtype.itemsize, 32)
    for first in range(0, y.shape[1], step):
        columns = slice(first, min(first + step, y.shape[1]))
        parts = _multiply(gated, weights.down, own, None, columns)
        added = None if shared is None else shared[:, columns]
        tensors = parts, places.places, routes.shares, added, shared_gate, y[:, columns], own, own[-1:]
        sizes = y.stride(0), y.shape[0], parts.shape[1], routes.experts.shape[1]
        call("lullm_mix", *tensors, *sizes, DTYPES[x.dtype])


def _gated(x: Tensor, starts: Tensor, rows: Tensor, weights: ExpertWeights) -> Tensor:
    """The joined gates and ups `[T * K, I]` of the sorted rows: in one pass where they are whole panels.

    Of experts without gates the activated ups.
    """
    if not weights.is_gated:
        assert not isinstance(weights.gate, ClampedGate), "a gate"
        return activate(_multiply(x, weights.gate_up, starts, rows, slice(0, weights.gate_up.shape[0])), weights.gate)
    clamp = weights.gate if isinstance(weights.gate, ClampedGate) else None
    num_outputs = weights.gate_up.shape[0]
    y = new_result((rows.shape[0], num_outputs // 2), x.dtype)
    kind = _CLAMPED_SILU if isinstance(weights.gate, ClampedGate) else ACTIVATIONS[weights.gate]
    if _call_product(x, y, weights.gate_up, starts, rows, (0, num_outputs, kind, clamp)):
        return y
    gate_up = _multiply(x, weights.gate_up, starts, rows, slice(0, num_outputs))
    if not isinstance(weights.gate, ClampedGate):
        return gate(gate_up, weights.gate)
    alpha, limit = weights.gate.alpha, weights.gate.limit
    call("lullm_clamped_gate", gate_up, y, *y.shape, alpha, limit, DTYPES[x.dtype])
    return y


def _multiply(x: Tensor, matrices: Matrices, starts: Tensor, rows: Tensor | None, outputs: slice) -> Tensor:
    """Some outputs of the sorted rows' experts; `rows` None: x is sorted."""
    num_outputs = outputs.stop - outputs.start
    y = new_result((x.shape[0] if rows is None else rows.shape[0], num_outputs), x.dtype)
    _call_product(x, y, matrices, starts, rows, (outputs.start, num_outputs, 0, None))
    return y


def _call_product(
    x: Tensor,
    y: Tensor,
    matrices: Matrices,
    starts: Tensor,
    rows: Tensor | None,
    form: tuple[int, int, int, ClampedGate | None],
) -> bool:
    """`form`: first output, outputs, activation, clamp. False: not with this activation."""
    first, num_outputs, kind, clamp = form
    biases, layout = matrices.bias_pointers, matrices.layouts[0]
    pointers = [None if each is None else ctypes.addressof(each) for each in (matrices.weight_pointers, biases)]
    sizes = x.stride(0), y.stride(0), len(matrices.weights), matrices.shape[1], first, num_outputs
    kinds = 0 if layout is None else layout.format, kind
    limits = (0.0, 0.0) if clamp is None else (clamp.alpha, clamp.limit)
    given = x, *pointers, y, starts, rows
    return bool(call("lullm_grouped_linear", *given, *sizes, *kinds, *limits, DTYPES[x.dtype]))
