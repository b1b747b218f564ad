"""The ops over a KV cache in the native library: writing it, reading it, copying its blocks (see `recording`).

They are native for the dtypes of `native`, over a cache of the same dtype or of 8 bits. Attention also needs a head
size that is a multiple of 16. All other cases use the torch version.
"""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lullm.ops import grouped_attention, head_products, torch_cpu
from lullm.ops.attention_layout import CausalScores, MutualScores
from lullm.ops.cache.float8_cache import FLOAT8
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cpu.native import DTYPES, has_whole_heads
from lullm.ops.cpu.recording import call, new_result
from lullm.ops.device_layout import DeviceLayout

_PLAIN_FORMAT = 0
_FORMATS = {torch.int8: 1, FLOAT8: 2}
"""The formats of a KV cache, with their numbers in `csrc/dtype.h`."""


def _format_of(cache: LayerCache, dtype: torch.dtype) -> int | None:
    """The number of the cache's format, for activations of `dtype`; None: there is no native version."""
    return _PLAIN_FORMAT if cache.key.dtype == dtype else _FORMATS.get(cache.key.dtype)


def _parts(cache: LayerCache) -> tuple[Tensor | None, ...]:
    """In the order of the native functions."""
    return cache.key, cache.value, cache.key_scales, cache.value_scales


def rope_and_cache(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    positions: Tensor,
    cos_sin_cache: Tensor,
    cache: LayerCache,
    slot_mapping: Tensor,
) -> Tensor:
    dtype, cache_format = DTYPES.get(qkv.dtype), _format_of(cache, qkv.dtype)
    num_tokens, num_heads, head_size = qkv.shape
    if dtype is None or cache_format is None or not has_whole_heads(qkv):
        return torch_cpu.rope_and_cache(qkv, head_norm, positions, cos_sin_cache, cache, slot_mapping)
    num_kv_heads = cache.num_kv_heads
    num_q_heads = num_heads - 2 * num_kv_heads
    q = new_result((num_tokens, num_q_heads, head_size), qkv.dtype)
    norms = (None, None) if head_norm is None else (head_norm.q_weight, head_norm.k_weight)
    eps = 0.0 if head_norm is None else head_norm.eps
    sizes = qkv.stride(0), num_tokens, num_q_heads, num_kv_heads, head_size, cache.row_bytes
    tensors = qkv, *norms, positions, cos_sin_cache, q, *_parts(cache), slot_mapping
    call("lullm_rope_and_cache", *tensors, *sizes, eps, dtype, cache_format)
    return q


def write_cache(kv: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    dtype, cache_format = DTYPES.get(kv.dtype), _format_of(cache, kv.dtype)
    num_heads = cache.num_kv_heads
    if dtype is None or cache_format is None or kv.stride(2) != 1 or num_heads > 1 and not has_whole_heads(kv):
        return torch_cpu.write_cache(kv, cache, slot_mapping)
    sides = [(cache.key, cache.key_scales), (cache.value, cache.value_scales)]
    for number, (side, scales) in enumerate(sides[: len(cache.tensors)]):
        rows = kv[:, number * num_heads :]
        sizes = kv.stride(0), kv.shape[0], num_heads, kv.shape[2], cache.row_bytes
        call("lullm_write_cache", rows, side, scales, slot_mapping, *sizes, dtype, cache_format)


_MOST_ROWS = 256
"""Rows of heads times matrices that cannot be packed (`csrc/head_operation.cpp`): torch is faster with more."""


def multiply_heads(x: Tensor, weight: Tensor, num_kept: int) -> Tensor:
    dtype = DTYPES.get(x.dtype)
    num_rows, num_heads, _ = x.shape
    is_by_inputs = weight.stride(1) == 1
    _, out, size = weight.shape
    is_dense = weight.stride(1 if not is_by_inputs else 2) == (size if not is_by_inputs else out)
    is_packable = out % 32 == 0 and size * x.dtype.itemsize % 64 == 0
    if dtype is None or num_rows > _MOST_ROWS and not is_packable or x.stride(2) != 1 or not is_dense:
        return head_products.multiply_heads(x, weight, num_kept)
    y = new_result((num_rows, num_heads, out + num_kept), x.dtype)
    sizes = x.stride(0), x.stride(1), weight.stride(0), num_rows, num_heads, size, out, num_kept
    call("lullm_multiply_heads", x, weight, y, *sizes, is_by_inputs, dtype)
    return y


@dataclass
class NativeLayout:
    """The prepared step.

    Args:
        pointers: the addresses of the block tables, the context lengths and the query starts.
        parts: of the step, as `native_latent` cuts it, once for all layers.
    """

    layout: DeviceLayout
    slot_mapping: Tensor
    pointers: tuple[int, int, int]
    parts: list[Any] = field(default_factory=list)

    @cached_property
    def grouped(self) -> grouped_attention.GroupedLayout:
        """For what the native version does not do."""
        return grouped_attention.prepare_attention(self.layout.on_host())


def prepare_attention(layout: DeviceLayout) -> NativeLayout:
    tables = layout.block_tables
    assert tables.stride(1) == 1 or tables.shape[1] <= 1, "rows of a table are in one piece"
    pointers = (tables.data_ptr(), layout.context_lens.data_ptr(), layout.query_starts.data_ptr())
    return NativeLayout(layout, layout.slot_mapping, pointers)


def attention(q: Tensor, cache: LayerCache, prepared: NativeLayout, scores: CausalScores) -> Tensor:
    dtype, cache_format = DTYPES.get(q.dtype), _format_of(cache, q.dtype)
    num_tokens, num_q_heads, head_size = q.shape
    if dtype is None or cache_format is None or head_size % 16 or not has_whole_heads(q):
        return grouped_attention.attention(q, cache, prepared.grouped, scores)
    out = new_result((num_tokens, num_q_heads, head_size), q.dtype)
    layout = prepared.layout
    strides = q.stride(0), layout.block_tables.stride(0)
    sizes = cache.block_size, num_q_heads, cache.num_kv_heads, head_size, cache.row_bytes, layout.num_spans
    tensors = q, *_parts(cache), scores.sinks, *prepared.pointers, out
    numbers = *strides, *sizes, layout.window or 0, scores.scale, scores.soft_cap or 0.0, layout.is_chunked
    call("lullm_attention", *tensors, *numbers, dtype, cache_format)
    return out


def mutual_attention(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int], scores: MutualScores) -> Tensor:
    dtype, (num_tokens, num_heads, head_size) = DTYPES.get(q.dtype), q.shape
    if dtype is None or scores.bias is not None:
        return torch_cpu.mutual_attention(q, k, v, lens, scores)
    if padding := -head_size % 16:  # SigLIP's heads have 72 elements; zeros change no sum
        q, k, v = (functional.pad(x, (0, padding)) for x in (q, k, v))
    if not has_whole_heads(q):
        q = q.contiguous()
    k, v = k.contiguous(), v.contiguous()
    out = new_result((num_tokens, num_heads, head_size + padding), q.dtype)
    starts = torch.tensor([0, *itertools.accumulate(lens)])
    sizes = q.stride(0), num_heads, k.shape[1], q.shape[2], len(lens)
    reach = -1 if scores.reach is None else scores.reach
    call("lullm_mutual_attention", q, k, v, out, starts, *sizes, reach, scores.scale, dtype)
    return out[..., :head_size]


def copy_blocks(caches: list[LayerCache], pairs: list[tuple[int, int]]) -> None:
    swap_blocks(caches, caches, pairs)


def swap_blocks(sources: list[LayerCache], destinations: list[LayerCache], pairs: list[tuple[int, int]]) -> None:
    if not pairs or not sources:
        return
    from_sides, to_sides = ([side for cache in caches for side in cache.tensors] for caches in (sources, destinations))
    pointers = [
        (ctypes.c_void_p * len(sides))(*[side.data_ptr() for side in sides]) for sides in (from_sides, to_sides)
    ]
    flat_pairs = torch.tensor(pairs, dtype=torch.int64)
    block_bytes = from_sides[0].stride(0) * from_sides[0].dtype.itemsize
    call("lullm_copy_blocks", *pointers, len(from_sides), flat_pairs, len(pairs), block_bytes)
