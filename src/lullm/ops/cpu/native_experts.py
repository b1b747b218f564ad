"""The mixture of experts over the native library (see `recording`): routing, and products with experts that have rows.

How many experts are read is data of a call, not its shape: so a step with experts is recorded like any other.
"""

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from lullm.config.experts import ClampedGate, ExpertsConfig
from lullm.ops import torch_cpu
from lullm.ops.cpu.native import ACTIVATIONS, DTYPES, gate
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.experts import grouped, routing
from lullm.ops.experts.routing import Routes
from lullm.ops.experts.weights import ExpertWeights, Matrices

_torch_experts = grouped.experts_over(torch_cpu.linear)


def route(products: Tensor, correction: Tensor | None, config: ExpertsConfig) -> Routes:
    has_own_groups = config.num_used_groups < config.num_groups and config.num_group_scores != 2
    if products.dtype not in DTYPES or products.stride(1) != 1 or has_own_groups:
        return routing.route(products, correction, config)
    num_rows, num_experts = products.shape
    experts = new_result((num_rows, config.num_used), torch.int64)
    shares = new_result((num_rows, config.num_used), torch.float32)
    call(
        "lullm_route",
        products.data_ptr(),
        None if correction is None else correction.data_ptr(),
        experts.data_ptr(),
        shares.data_ptr(),
        products.stride(0),
        num_rows,
        num_experts,
        config.num_used,
        config.num_groups,
        config.num_used_groups,
        config.scale,
        config.scoring == "sigmoid",
        config.normalizes,
        DTYPES[products.dtype],
    )
    return Routes(experts, shares)


class _Sorted(NamedTuple):
    """The rows of a step by expert; see `lullm_sort_rows`."""

    starts: Tensor  # [E + 1]
    rows: Tensor  # [T * K]
    places: Tensor  # [T, K]


def experts(
    x: Tensor, routes: Routes, weights: ExpertWeights, shared: Tensor | None, shared_gate: Tensor | None
) -> Tensor:
    if x.dtype not in DTYPES:
        return _torch_experts(x, routes, weights, shared, shared_gate)
    if x.stride(1) != 1:
        x = x.contiguous()
    places = _sort(routes, len(weights.down.weights))
    parts = _multiply(_gated(x, places, weights), weights.down, places.starts, None, 0)
    assert parts is not None, "only a product with an activation may be refused"
    y = new_result(x.shape, x.dtype)
    call(
        "lullm_mix",
        parts.data_ptr(),
        places.places.data_ptr(),
        routes.shares.data_ptr(),
        None if shared is None else shared.data_ptr(),
        None if shared_gate is None else shared_gate.data_ptr(),
        y.data_ptr(),
        *x.shape,
        routes.experts.shape[1],
        DTYPES[x.dtype],
    )
    return y


def _sort(routes: Routes, num_experts: int) -> _Sorted:
    num_rows, num_used = routes.experts.shape
    found = _Sorted(
        *(new_result((size,), torch.int64) for size in (num_experts + 1, num_rows * num_used, num_rows * num_used))
    )
    if not call(
        "lullm_sort_rows", routes.experts.data_ptr(), *(t.data_ptr() for t in found), num_rows, num_used, num_experts
    ):
        raise IndexError(f"a token chose an expert outside the {num_experts}")
    return found


def _gated(x: Tensor, places: _Sorted, weights: ExpertWeights) -> Tensor:
    """The joined gates and ups `[T * K, I]` of the sorted rows."""
    if not isinstance(weights.gate, ClampedGate):
        gated = _multiply(x, weights.gate_up, places.starts, places.rows, ACTIVATIONS[weights.gate])
        if gated is not None:
            return gated
    gate_up = _multiply(x, weights.gate_up, places.starts, places.rows, 0)
    assert gate_up is not None, "only a product with an activation may be refused"
    if not isinstance(weights.gate, ClampedGate):
        return gate(gate_up, weights.gate)
    num_rows, size = gate_up.shape
    y = new_result((num_rows, size // 2), x.dtype)
    clamp, dtype = weights.gate, DTYPES[x.dtype]
    call("lullm_clamped_gate", gate_up.data_ptr(), y.data_ptr(), num_rows, size // 2, clamp.alpha, clamp.limit, dtype)
    return y


def _multiply(x: Tensor, matrices: Matrices, starts: Tensor, rows: Tensor | None, activation: int) -> Tensor | None:
    """The sorted rows times their experts' matrices; None: not with this activation. `rows` None: x is sorted."""
    num_outputs, num_inputs = matrices.shape
    if activation:
        num_outputs //= 2
    y = new_result((x.shape[0] if rows is None else rows.shape[0], num_outputs), x.dtype)
    biases = matrices.bias_pointers
    is_done = call(
        "lullm_grouped_linear",
        x.data_ptr(),
        ctypes.addressof(matrices.weight_pointers),
        None if biases is None else ctypes.addressof(biases),
        y.data_ptr(),
        starts.data_ptr(),
        None if rows is None else rows.data_ptr(),
        x.stride(0),
        num_outputs,
        len(matrices.weights),
        num_inputs,
        matrices.shape[0],
        0 if matrices.layout is None else matrices.layout.format,
        activation,
        DTYPES[x.dtype],
    )
    return y if is_done else None
