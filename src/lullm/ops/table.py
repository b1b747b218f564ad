"""Ops: the table of functions that do a model's arithmetic. A model calls the table and never knows which version.

Sizes: T tokens (rows) of this step, H hidden size, Hq query heads, Hkv key/value heads (Hq is a multiple of it),
D head size, V vocabulary. Activations have the model's dtype; every function works on the device of its arguments,
none keeps state, and all are called under `torch.inference_mode()`. The versions are in `selection`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lullm.ops import quantized_torch
from lullm.ops.attention_layout import KVCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.draw_table import DrawTable
from lullm.ops.quantized_weight import QuantizedLayout

_Maybe = Tensor | None


def _keep_weight(weight: Tensor) -> None:
    """For versions that read weights as the checkpoint has them."""


@dataclass(frozen=True, slots=True)
class Ops:
    """The functions, by their arguments and results.

    Args:
        name: of the version, for logs and tests.
        embedding: (token_ids `[T]` int64, weight `[V, H]`) -> `[T, H]`.
        linear: (x `[T, in]`, weight `[out, in]`, bias `[out]` or None) -> `[T, out]`.
        logits: (x `[T, H]`, weight `[V, H]`) -> `[T, V]` float32; versions may round to x's dtype before.
        linear_silu_mul: (x `[T, in]`, gate_up_weight `[2 * I, in]`: gates first, bias `[2 * I]` or None) -> `[T, I]`:
            `silu(gate) * up` of the two products (https://arxiv.org/abs/2002.05202).
        rms_norm: (x `[..., N]`, weight `[N]`, eps) -> like x. Mean square in float32, rounded to x's dtype before
            the weight is applied (https://arxiv.org/abs/1910.07467).
        add_rms_norm: (x `[T, H]`, residual `[T, H]`, weight `[H]`, eps) -> (rms_norm of the sum, the sum). The
            contents of both arguments are undefined afterwards.
        rope_and_cache: (qkv `[T, Hq + 2 * Hkv, D]`, q_norm_weight and k_norm_weight `[D]` or None, eps, positions
            `[T]` int64, cos_sin_cache `[max_len, D]` float32: D/2 cosines, then D/2 sines, key_cache, value_cache,
            slot_mapping `[T]` int64, key_scales and value_scales `[Hkv]` float32 or None) -> q `[T, Hq, D]`. Norms
            every query and key head that has a weight, rotates both in pairs (i, i + D/2)
            (https://arxiv.org/abs/2104.09864), and writes keys and values into both caches in place, quantizing if
            they are int8 (`int8_cache`) or fp8 (`float8_cache`, the one kind that has scales; None: all are 1). A row
            of slot -1 is written nowhere.
        prepare_attention: (layout) -> what `attention` of the same table wants; once per step, shared by all layers.
        attention: (q `[T, Hq, D]`, key_cache, value_cache, prepared, scale, key_scales and value_scales as above) ->
            `[T, Hq, D]`. Causal: the row at position p sees the positions 0..p of its own sequence (with a window:
            the last so many of them), all read from the cache (`rope_and_cache` first).
        copy_blocks: (kv_caches of all layers, pairs of (source, destination) block ids) -> None; copies whole blocks
            in every layer, as if one pair after the other.
        swap_blocks: (sources, destinations: the caches of all layers in two pools, pairs of (source, destination)
            block ids) -> None; copies whole blocks between the pools. No destination stands in two pairs.
        pack_weight_: (weight `[out, in]`) -> None; rearranges in place what `linear` and `embedding` of this table are
            given, once, when it is complete. Shape and dtype stay, but rows are no longer rows.
        unpack_weight_: (weight) -> None; undoes it.
        quantized_embedding: (token_ids `[T]` int64, weight of 8 bits and its layout (`quantized_weight`), dtype) ->
            `[T, H]` of that dtype.
        quantized_linear: (x `[T, in]`, weight and its layout, bias `[out]` or None) -> `[T, out]`. Versions may round
            x to 16-bit integers times a scale per row.
        quantized_logits: as `logits`, of a quantized weight and its layout.
        quantized_linear_silu_mul: as `linear_silu_mul`, of a quantized weight and its layout.
        draw_tokens: (logits `[N, V]` float32, draw table, whether to leave in the logits what was drawn from) -> `[N]`
            int64, NO_TOKEN where there is none; see `DrawTable`. Does not synchronise. None: the sampler's own way.
        is_recordable: whether a graph may record attention: no function waits for the device, and launches follow
            from bounds, not from lengths. On a CPU: whether it is worth trying (`ops.cpu.recording`).
        index_dtype: of the integers in a `DeviceLayout`.
        semaphores_per_span: that attention needs in a `DeviceLayout`.
    """

    name: str
    embedding: Callable[[Tensor, Tensor], Tensor]
    linear: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    logits: Callable[[Tensor, Tensor], Tensor]
    linear_silu_mul: Callable[[Tensor, Tensor, Tensor | None], Tensor]
    rms_norm: Callable[[Tensor, Tensor, float], Tensor]
    add_rms_norm: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]
    rope_and_cache: Callable[
        [Tensor, _Maybe, _Maybe, float, Tensor, Tensor, Tensor, Tensor, Tensor, _Maybe, _Maybe], Tensor
    ]
    prepare_attention: Callable[[DeviceLayout], Any]
    attention: Callable[[Tensor, Tensor, Tensor, Any, float, _Maybe, _Maybe], Tensor]
    copy_blocks: Callable[[list[KVCache], list[tuple[int, int]]], None]
    swap_blocks: Callable[[list[KVCache], list[KVCache], list[tuple[int, int]]], None]
    pack_weight_: Callable[[Tensor], None] = _keep_weight
    unpack_weight_: Callable[[Tensor], None] = _keep_weight
    quantized_embedding: Callable[[Tensor, Tensor, QuantizedLayout, torch.dtype], Tensor] = (
        quantized_torch.quantized_embedding
    )
    quantized_linear: Callable[[Tensor, Tensor, QuantizedLayout, Tensor | None], Tensor] = (
        quantized_torch.quantized_linear
    )
    quantized_logits: Callable[[Tensor, Tensor, QuantizedLayout], Tensor] = quantized_torch.quantized_logits
    quantized_linear_silu_mul: Callable[[Tensor, Tensor, QuantizedLayout, Tensor | None], Tensor] = (
        quantized_torch.quantized_linear_silu_mul
    )
    draw_tokens: Callable[[Tensor, DrawTable, bool], Tensor] | None = None
    is_recordable: bool = False
    index_dtype: torch.dtype = torch.int64
    semaphores_per_span: int = 0
