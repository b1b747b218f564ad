"""The ops of recurrent layers in the native library, over states where they lie in the KV cache (see `recording`).

They are native for the dtypes of `native`; other cases use the torch version. A prompt takes them token by token, in
the cache of a core, or where there are tiles by chunks at multiples of their length in a sequence (but for selective
scans): so a token's bits follow neither the batch nor the steps that its prompt is cut into.
"""

import torch
from torch import Tensor

from lullm.ops import in_place
from lullm.ops.cpu.native import DTYPES, has_whole_heads
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.state import mixing, recurrence
from lullm.ops.state.layout import LayerState
from lullm.ops.state.weights import DecayWeights, UnitWeights
from lullm.types.arithmetic import Gating

_torch_convolution = mixing.causal_convolution_over(recurrence.convolve)
_torch_delta_rule = mixing.gated_delta_rule_over(recurrence.scan)
_torch_state_space = mixing.state_space_over(recurrence.scan)
_torch_selective_scan = mixing.selective_scan_over(recurrence.select)
_torch_rg_lru = mixing.rg_lru_over(recurrence.unite)
_GATINGS: dict[Gating | None, int] = {None: 0, "silu": 1, "sigmoid": 2, "softplus": 3}
"""By their number in `csrc/state/arguments.h`."""


def _place(state: LayerState, index: int) -> tuple[Tensor | int, ...]:
    """Where tensor `index` of the states lies: the arguments from the caches on."""
    key, layout, num_blocks = state.cache.key, state.layout.layout, state.num_blocks
    tables = layout.block_tables
    first_block = tables.data_ptr() + state.part * num_blocks * tables.itemsize
    sizes = layout.num_spans, tables.stride(0), num_blocks
    piece = key.stride(0) * key.itemsize, key[0].nbytes // torch.float32.itemsize, state.offset(index)
    return key, state.cache.value, first_block, layout.context_lens, layout.query_starts, *sizes, *piece


def causal_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, activates: bool, state: LayerState) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None or weight.dtype != x.dtype or x.stride(1) != 1 or not weight.is_contiguous():
        return _torch_convolution(x, weight, bias, activates, state)
    y = new_result(x.shape, x.dtype)
    sizes = x.stride(0), *weight.shape
    call("lullm_causal_convolution", x, weight, bias, y, *_place(state, 0), *sizes, activates, dtype)
    return y


def gated_delta_rule(qk: Tensor, v: Tensor, sizes: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
    if not _is_native(qk, v, sizes):
        return _torch_delta_rule(qk, v, sizes, weights, state)
    queries, keys = qk.chunk(2, dim=1)
    betas, steps = sizes.split((v.shape[1], sizes.shape[1] - v.shape[1]), dim=1)
    return _recur((queries, keys, v), (betas, steps), weights, state)


def state_space(x: Tensor, bc: Tensor, dt: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
    if not _is_native(bc, x, dt):
        return _torch_state_space(x, bc, dt, weights, state)
    keys, queries = bc.chunk(2, dim=1)
    return _recur((queries, keys, x), (None, dt), weights, state)


def _is_native(keys: Tensor, values: Tensor, steps: Tensor) -> bool:
    is_laid_out = has_whole_heads(keys) and has_whole_heads(values) and steps.stride(1) == 1
    return values.dtype in DTYPES and keys.dtype == values.dtype == steps.dtype and is_laid_out


def _recur(
    heads: tuple[Tensor, Tensor, Tensor],  # queries, keys [T, G, Dk], values [T, H, Dv]
    sizes: tuple[Tensor | None, Tensor],  # betas or None, steps [T, H] or [T, H * Dk]
    weights: DecayWeights,
    state: LayerState,
) -> Tensor:  # [T, H, Dv]
    (queries, keys, values), (betas, steps) = heads, sizes
    y = new_result(values.shape, values.dtype)
    decays_by_key = steps.shape[1] != values.shape[1]  # then no factors lie behind the matrices
    has_chunks = len(state.shapes) > (2 if decays_by_key else 3)
    tensors = queries, keys, values, betas, steps, weights.a_log, weights.dt_bias, weights.skip, y
    strides = keys.stride(0), values.stride(0), steps.stride(0)
    counts = keys.shape[1], values.shape[1], keys.shape[2], values.shape[2]
    bounds = weights.least_step, weights.most_step if betas is None else weights.most_beta
    kinds = has_chunks, decays_by_key, DTYPES[values.dtype]
    call("lullm_recurrence", *tensors, *_place(state, 1), *strides, *counts, *bounds, *kinds)
    return y


def selective_scan(x: Tensor, bc: Tensor, dt: Tensor, weights: DecayWeights, state: LayerState) -> Tensor:
    is_laid_out = x.stride(1) == bc.stride(1) == dt.stride(1) == 1 and weights.a_log.is_contiguous()
    if x.dtype not in DTYPES or not x.dtype == bc.dtype == dt.dtype or not is_laid_out or weights.skip is None:
        return _torch_selective_scan(x, bc, dt, weights, state)
    y = new_result(x.shape, x.dtype)
    tensors = x, bc, dt, weights.a_log, weights.dt_bias, weights.skip, y
    sizes = x.stride(0), bc.stride(0), dt.stride(0), *weights.a_log.shape
    call("lullm_selective_scan", *tensors, *_place(state, 1), *sizes, DTYPES[x.dtype])
    return y


def rg_lru(x: Tensor, inputs: Tensor, decays: Tensor, weights: UnitWeights, state: LayerState) -> Tensor:
    rows = x, inputs, decays
    if x.dtype not in DTYPES or any(given.dtype != x.dtype or given.stride(1) != 1 for given in rows):
        return _torch_rg_lru(x, inputs, decays, weights, state)
    y = new_result(x.shape, x.dtype)
    tensors = *rows, weights.rate, weights.input_bias, weights.decay_bias, y
    sizes = *(given.stride(0) for given in rows), x.shape[1]
    call("lullm_rg_lru", *tensors, *_place(state, 1), *sizes, DTYPES[x.dtype])
    return y


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, gates_first: bool) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    if dtype is None or not has_whole_heads(x) or gate.stride(1) != 1 or weight.dtype != x.dtype:
        return mixing.gated_rms_norm(x, gate, weight, eps, gates_first)
    num_rows, num_groups, size = x.shape
    y = new_result((num_rows, num_groups * size), x.dtype)
    sizes = x.stride(0), gate.stride(0), num_rows, num_groups, size, size if weight.shape[0] > size else 0
    call("lullm_gated_rms_norm", x, gate, weight, y, *sizes, eps, gates_first, dtype)
    return y


def multiply_(y: Tensor, x: Tensor, gating: Gating | None) -> None:
    if y.dtype not in DTYPES or x.dtype != y.dtype or y.stride(1) != 1 or x.stride(1) != 1:
        in_place.multiply_(y, x, gating)
        return
    sizes = y.stride(0), x.stride(0), *y.shape, y.shape[1] // x.shape[1]
    call("lullm_multiply", y, x, *sizes, _GATINGS[gating], DTYPES[y.dtype])
