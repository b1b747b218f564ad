"""Norm queries and keys, rotate them, write keys and values into the cache: one kernel between two matrix products.

A program computes some heads of one row: query heads, key heads, or value heads. Every value is read once and written
once. The halves of a head are in two tiles of registers, so that the rotation needs no shuffle.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.errors import UnsupportedError
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.triton.device import converts_float8
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import overlap_options, wait_for_inputs
from lullm.ops.triton.tile import ROPE_HEADS
from lullm.units import cdiv, next_power_of_2


@triton.jit
def to_float8(x):
    """float32 -> e4m3 of `ops.cache.float8_cache`, to the nearest, ties to even, saturating; NaN stays NaN.

    Rounded before the conversion, which is then exact: Triton's interpreter loses the carry of a rounding.
    """
    is_nan = x != x  # the next line would turn NaN into a number
    x = tl.minimum(tl.maximum(x, -448.0), 448.0)
    bits = x.to(tl.int32, bitcast=True)
    rounded = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)  # 3 bits of mantissa
    subnormal = (x + 24576.0) - 24576.0  # below 2**-6 the step is 2**-9, the spacing of float32 at 1.5 * 2**14
    value = tl.where(tl.abs(x) < 0.015625, subnormal, rounded).to(tl.float8e4nv)
    return tl.where(is_nan, 0x7F, value.to(tl.uint8, bitcast=True)).to(tl.uint8).to(tl.float8e4nv, bitcast=True)


@triton.jit
def _norm(first, second, weight_ptr, columns, column_mask, eps, HEAD_SIZE: tl.constexpr):
    """RMSNorm of heads `[N, D]` given as halves in their own dtype; rounded before and after the weight."""
    a, b = first.to(tl.float32), second.to(tl.float32)
    factor = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / HEAD_SIZE + eps)[:, None]
    a, b = (a * factor).to(first.dtype).to(tl.float32), (b * factor).to(first.dtype).to(tl.float32)
    weight_a = tl.load(weight_ptr + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    weight_b = tl.load(weight_ptr + HEAD_SIZE // 2 + columns, mask=column_mask, other=0.0).to(tl.float32)[None, :]
    return (a * weight_a).to(first.dtype), (b * weight_b).to(first.dtype)


@triton.jit
def _rotate(first, second, table_ptr, columns, column_mask, HEAD_SIZE: tl.constexpr):
    cos = tl.load(table_ptr + columns, mask=column_mask, other=0.0)[None, :]
    sin = tl.load(table_ptr + HEAD_SIZE // 2 + columns, mask=column_mask, other=0.0)[None, :]
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * cos - b * sin).to(first.dtype), (b * cos + a * sin).to(first.dtype)


@triton.jit
def _store_cached(cache_ptr, places, first, second, mask, scales_ptr, heads, head_mask, HALF, IS_FLOAT8: tl.constexpr,
                  HAS_SCALES: tl.constexpr):  # fmt: skip
    if IS_FLOAT8:
        a, b = first.to(tl.float32), second.to(tl.float32)
        if HAS_SCALES:
            scale = tl.load(scales_ptr + heads, mask=head_mask, other=1.0)[:, None]
            a, b = a / scale, b / scale
        tl.store(cache_ptr + places, to_float8(a), mask=mask)
        tl.store(cache_ptr + places + HALF, to_float8(b), mask=mask)
    else:
        tl.store(cache_ptr + places, first, mask=mask)
        tl.store(cache_ptr + places + HALF, second, mask=mask)


# A group's slots may begin anywhere among those of all groups, and are read one by one.
@triton.jit(do_not_specialize_on_alignment=["slots_ptr"])
def _rope_and_cache_kernel(
    q_ptr,  # [T, Hq, D], written
    qkv_ptr,  # [T, Hq + 2 * Hkv, D]
    q_norm_ptr,
    k_norm_ptr,
    eps,
    positions_ptr,
    cos_sin_ptr,
    key_ptr,
    value_ptr,
    key_scales_ptr,
    value_scales_ptr,
    slots_ptr,
    row_stride,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    BLOCK_HALF: tl.constexpr,  # a power of two, at least D / 2
    HEADS: tl.constexpr,  # per program
    HAS_NORM: tl.constexpr,
    IS_FLOAT8: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    HALF: tl.constexpr = HEAD_SIZE // 2
    Q_TILES: tl.constexpr = (NUM_Q_HEADS + HEADS - 1) // HEADS
    KV_TILES: tl.constexpr = (NUM_KV_HEADS + HEADS - 1) // HEADS
    row = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    columns = tl.arange(0, BLOCK_HALF)
    column_mask = columns < HALF
    table_ptr = cos_sin_ptr + tl.load(positions_ptr + row) * HEAD_SIZE
    if tile < Q_TILES:
        heads = tile * HEADS + tl.arange(0, HEADS)
        mask = (heads < NUM_Q_HEADS)[:, None] & column_mask[None, :]
        places = heads[:, None] * HEAD_SIZE + columns[None, :]
        first = tl.load(qkv_ptr + row * row_stride + places, mask=mask, other=0.0)
        second = tl.load(qkv_ptr + row * row_stride + places + HALF, mask=mask, other=0.0)
        if HAS_NORM:
            first, second = _norm(first, second, q_norm_ptr, columns, column_mask, eps, HEAD_SIZE)
        first, second = _rotate(first, second, table_ptr, columns, column_mask, HEAD_SIZE)
        out_ptr = q_ptr + row * NUM_Q_HEADS * HEAD_SIZE + places
        tl.store(out_ptr, first, mask=mask)
        tl.store(out_ptr + HALF, second, mask=mask)
    else:
        slot = tl.load(slots_ptr + row)
        if slot >= 0:
            is_key = tile < Q_TILES + KV_TILES
            first_head = (tile - Q_TILES) * HEADS if is_key else (tile - Q_TILES - KV_TILES) * HEADS
            heads = first_head + tl.arange(0, HEADS)
            head_mask = heads < NUM_KV_HEADS
            mask = head_mask[:, None] & column_mask[None, :]
            places = heads[:, None] * HEAD_SIZE + columns[None, :]
            if is_key:
                source = qkv_ptr + row * row_stride + NUM_Q_HEADS * HEAD_SIZE + places
            else:
                source = qkv_ptr + row * row_stride + (NUM_Q_HEADS + NUM_KV_HEADS) * HEAD_SIZE + places
            first = tl.load(source, mask=mask, other=0.0)
            second = tl.load(source + HALF, mask=mask, other=0.0)
            places = slot * (NUM_KV_HEADS * HEAD_SIZE) + places
            if is_key:
                if HAS_NORM:
                    first, second = _norm(first, second, k_norm_ptr, columns, column_mask, eps, HEAD_SIZE)
                first, second = _rotate(first, second, table_ptr, columns, column_mask, HEAD_SIZE)
                _store_cached(key_ptr, places, first, second, mask, key_scales_ptr, heads, head_mask, HALF, IS_FLOAT8,
                              HAS_SCALES)  # fmt: skip
            else:
                _store_cached(value_ptr, places, first, second, mask, value_scales_ptr, heads, head_mask, HALF,
                              IS_FLOAT8, HAS_SCALES)  # fmt: skip


ROPE_AND_CACHE = Kernel(_rope_and_cache_kernel)


def rope_and_cache(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    positions: Tensor,
    cos_sin_cache: Tensor,
    cache: LayerCache,
    slot_mapping: Tensor,
) -> Tensor:
    """See `Ops.rope_and_cache`."""
    num_rows, num_heads, head_size = qkv.shape
    check_cache(cache, qkv.dtype, head_size)
    num_kv_heads = cache.num_kv_heads
    num_q_heads = num_heads - 2 * num_kv_heads
    assert qkv.stride(2) == 1 and qkv.stride(1) == head_size, "the heads of a row are in one piece"
    q = torch.empty((num_rows, num_q_heads, head_size), dtype=qkv.dtype, device=qkv.device)
    if not num_rows:
        return q
    heads = min(ROPE_HEADS, next_power_of_2(num_kv_heads))
    num_tiles = cdiv(num_q_heads, heads) + 2 * cdiv(num_kv_heads, heads)
    ROPE_AND_CACHE[(num_rows, num_tiles)](
        q,
        qkv,
        qkv if head_norm is None else head_norm.q_weight,
        qkv if head_norm is None else head_norm.k_weight,
        0.0 if head_norm is None else head_norm.eps,
        positions,
        cos_sin_cache,
        cache.key,
        cache.value,
        cos_sin_cache if cache.key_scales is None else cache.key_scales,
        cos_sin_cache if cache.value_scales is None else cache.value_scales,
        slot_mapping,
        qkv.stride(0),
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_SIZE=head_size,
        BLOCK_HALF=next_power_of_2(head_size // 2),
        HEADS=heads,
        HAS_NORM=head_norm is not None,
        IS_FLOAT8=cache.key.dtype == torch.float8_e4m3fn,
        HAS_SCALES=cache.key_scales is not None,
        **overlap_options(),
        num_warps=4,
    )
    return q


def write_cache(kv: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    """See `Ops.write_cache`: rows of no query heads, rotated by an angle of 0."""
    num_rows, _, head_size = kv.shape
    if kv.stride(1) != head_size:
        kv = kv.contiguous()  # a latent vector is the key and, from the same place, the value
    no_rotation = torch.zeros((1, head_size), dtype=torch.float32, device=kv.device)
    no_rotation[:, : head_size // 2] = 1.0
    positions = torch.zeros(num_rows, dtype=torch.int64, device=kv.device)
    rope_and_cache(kv, None, positions, no_rotation, cache, slot_mapping)


def check_cache(cache: LayerCache, dtype: torch.dtype, head_size: int) -> None:
    """Raises UnsupportedError: the KV cache has another shape than `[num_blocks, block_size, Hkv, D]`."""
    if cache.key.dtype not in (dtype, torch.float8_e4m3fn):
        raise UnsupportedError(
            f"Triton's kernels take a KV cache of {dtype} or torch.float8_e4m3fn, not {cache.key.dtype}; use another "
            "kv_cache_dtype"
        )
    if cache.key.shape[3] != head_size:
        raise UnsupportedError(
            f"Triton's kernels take rows of {head_size} elements in the KV cache, and layers of other sizes make them "
            f"{cache.key.shape[3]} long here; use attention_backend='torch'"
        )
    if cache.key.dtype == torch.float8_e4m3fn and not converts_float8():
        raise UnsupportedError(
            "an fp8 KV cache needs a GPU of compute capability 8.9 at least; use kv_cache_dtype='auto'"
        )
    assert cache.key.is_contiguous() and cache.value.is_contiguous()
