"""The ops over a KV cache in the native library: writing it, reading it, copying its blocks (see `recording`).

Native where `native` is, and the cache has the dtype of the activations; attention also wants a head size that is a
multiple of 16. Everything else goes to the torch version.
"""

import ctypes
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from lullm.ops import grouped_attention, torch_cpu
from lullm.ops.attention_layout import KVCache
from lullm.ops.cpu.native import DTYPES, has_whole_heads
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.device_layout import DeviceLayout


def rope_and_cache(
    qkv: Tensor,
    q_norm_weight: Tensor | None,
    k_norm_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    dtype = DTYPES.get(qkv.dtype)
    num_tokens, num_heads, head_size = qkv.shape
    if dtype is None or key_cache.dtype != qkv.dtype or not has_whole_heads(qkv):
        return torch_cpu.rope_and_cache(
            qkv,
            q_norm_weight,
            k_norm_weight,
            eps,
            positions,
            cos_sin_cache,
            key_cache,
            value_cache,
            slot_mapping,
            key_scales,
            value_scales,
        )
    num_kv_heads = key_cache.shape[2]
    num_q_heads = num_heads - 2 * num_kv_heads
    q = new_result((num_tokens, num_q_heads, head_size), qkv.dtype)
    call(
        "lullm_rope_and_cache",
        qkv.data_ptr(),
        None if q_norm_weight is None else q_norm_weight.data_ptr(),
        None if k_norm_weight is None else k_norm_weight.data_ptr(),
        positions.data_ptr(),
        cos_sin_cache.data_ptr(),
        q.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        slot_mapping.data_ptr(),
        qkv.stride(0),
        num_tokens,
        num_q_heads,
        num_kv_heads,
        head_size,
        eps,
        dtype,
    )
    return q


@dataclass
class NativeLayout:
    """The prepared step. `pointers`: the addresses of the block tables, the context lengths and the query starts."""

    layout: DeviceLayout
    slot_mapping: Tensor
    pointers: tuple[int, int, int]

    @cached_property
    def grouped(self) -> grouped_attention.GroupedLayout:
        """For what the native version does not do."""
        return grouped_attention.prepare_attention(self.layout.on_host())


def prepare_attention(layout: DeviceLayout) -> NativeLayout:
    tables = layout.block_tables
    assert tables.stride(1) == 1 or tables.shape[1] <= 1, "rows of a table are in one piece"
    pointers = (tables.data_ptr(), layout.context_lens.data_ptr(), layout.query_starts.data_ptr())
    return NativeLayout(layout, layout.slot_mapping, pointers)


def attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    prepared: NativeLayout,
    scale: float,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    dtype = DTYPES.get(q.dtype)
    num_tokens, num_q_heads, head_size = q.shape
    if dtype is None or head_size % 16 or key_cache.dtype != q.dtype or not has_whole_heads(q):
        return grouped_attention.attention(q, key_cache, value_cache, prepared.grouped, scale, key_scales, value_scales)
    out = new_result((num_tokens, num_q_heads, head_size), q.dtype)
    call(
        "lullm_attention",
        q.data_ptr(),
        key_cache.data_ptr(),
        value_cache.data_ptr(),
        *prepared.pointers,
        out.data_ptr(),
        q.stride(0),
        prepared.layout.block_tables.stride(0),
        key_cache.shape[1],
        num_q_heads,
        key_cache.shape[2],
        head_size,
        prepared.layout.num_spans,
        prepared.layout.window or 0,
        scale,
        dtype,
    )
    return out


def copy_blocks(kv_caches: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    swap_blocks(kv_caches, kv_caches, pairs)


def swap_blocks(sources: list[KVCache], destinations: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    if not pairs or not sources:
        return
    from_caches, to_caches = ([cache for layer in caches for cache in layer] for caches in (sources, destinations))
    pointers = [
        (ctypes.c_void_p * len(caches))(*[cache.data_ptr() for cache in caches]) for caches in (from_caches, to_caches)
    ]
    flat_pairs = torch.tensor(pairs, dtype=torch.int64)
    block_bytes = from_caches[0].stride(0) * from_caches[0].dtype.itemsize
    call("lullm_copy_blocks", *pointers, len(from_caches), flat_pairs.data_ptr(), len(pairs), block_bytes)
