"""Attention of rows that see each other, of all spans in one launch: encoders of texts, towers of pictures.

As `prefill_attention`, without a cache: a program computes one head for a tile of rows of one span, over the span's
keys. A row's bits depend on its own span alone.
"""

import functools
import itertools
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.attention_layout import MutualScores
from lullm.ops.triton.decode_attention import LOG2_E, LOG2_OF_E
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.prefill_attention import span_of_tile
from lullm.ops.triton.tile import mutual_tile
from lullm.units import next_power_of_2


@triton.jit
def _attend(
    acc, best, total, q, begin, end, places, length, key_ptr, value_ptr, bias_ptr, key_stride, value_stride,
    bias_stride, scale_log2, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_KEYS: tl.constexpr,
    REACH: tl.constexpr, HAS_BIAS: tl.constexpr, IS_MASKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The keys `begin`..`end` - 1 of a span. Without a mask all of them are there, and all rows see them."""
    columns = tl.arange(0, BLOCK_D)
    column_mask = columns < HEAD_SIZE
    for turn in range(begin, end, BLOCK_KEYS):
        keys = turn + tl.arange(0, BLOCK_KEYS)
        key_places = key_ptr + keys.to(tl.int64)[None, :] * key_stride + columns[:, None]
        value_places = value_ptr + keys.to(tl.int64)[:, None] * value_stride + columns[None, :]
        if IS_MASKED:
            present = keys < length
            k = tl.load(key_places, mask=present[None, :] & column_mask[:, None], other=0.0)
            v = tl.load(value_places, mask=present[:, None] & column_mask[None, :], other=0.0)
        elif HEAD_SIZE != BLOCK_D:
            k = tl.load(key_places, mask=column_mask[:, None], other=0.0)
            v = tl.load(value_places, mask=column_mask[None, :], other=0.0)
        else:
            k = tl.load(key_places)
            v = tl.load(value_places)
        scores = tl.dot(q, k, input_precision=PRECISION) * scale_log2
        if HAS_BIAS:
            bias_places = bias_ptr + places.to(tl.int64)[:, None] * bias_stride + keys[None, :]
            bias = tl.load(bias_places, mask=keys[None, :] < length, other=0.0)
            scores += bias.to(tl.float32) * LOG2_OF_E
        if IS_MASKED:
            seen = keys[None, :] < length
            if REACH >= 0:
                seen = seen & (tl.abs(keys[None, :] - places[:, None]) <= REACH)
            scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        shift = new_best
        if REACH >= 0:
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)  # a row that has seen no key so far
        weights = tl.math.exp2(scores - shift[:, None])
        rescale = tl.math.exp2(best - shift)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
        best = new_best
    return acc, best, total


@triton.jit(do_not_specialize=["num_spans", "bias_head_stride", "bias_stride"])
def _mutual_kernel(
    out_ptr,  # [T, Hq, D]
    q_ptr,  # [T, Hq, D], as keys and values a part of longer rows
    key_ptr,  # [T, Hkv, D]
    value_ptr,
    bias_ptr,  # [Hq, L, L]
    starts_ptr,  # [spans + 1] int32: first rows
    num_spans,
    scale_log2,
    q_stride,
    key_stride,
    value_stride,
    bias_head_stride,
    bias_stride,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads of a key/value head
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    REACH: tl.constexpr,  # -1: all rows of a span see each other
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    head = tl.program_id(0)
    tile = tl.program_id(1)
    span = span_of_tile(starts_ptr, num_spans, tile, BLOCK_ROWS)
    span_row = tl.load(starts_ptr + span)
    length = tl.load(starts_ptr + span + 1) - span_row
    first = (tile - span_row // BLOCK_ROWS - span) * BLOCK_ROWS
    if first >= length:  # spare room
        return
    places = first + tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_D)
    mask = (places < length)[:, None] & (columns < HEAD_SIZE)[None, :]
    rows = (span_row + places).to(tl.int64)[:, None]
    q = tl.load(q_ptr + rows * q_stride + head * HEAD_SIZE + columns[None, :], mask=mask, other=0.0)
    kv_place = head // GROUP * HEAD_SIZE
    key_ptr += span_row.to(tl.int64) * key_stride + kv_place
    value_ptr += span_row.to(tl.int64) * value_stride + kv_place
    bias_ptr += head.to(tl.int64) * bias_head_stride
    places = tl.minimum(places, length - 1)  # rows of padding see the last row's keys

    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    begin = 0
    end = length
    open_end = length // BLOCK_KEYS * BLOCK_KEYS
    if REACH >= 0:
        begin = tl.maximum(first - REACH, 0) // BLOCK_KEYS * BLOCK_KEYS
        end = tl.minimum(first + BLOCK_ROWS + REACH, length)
        open_end = begin
    else:
        acc, best, total = _attend(
            acc, best, total, q, begin, open_end, places, length, key_ptr, value_ptr, bias_ptr, key_stride,
            value_stride, bias_stride, scale_log2, HEAD_SIZE, BLOCK_D, BLOCK_KEYS, REACH, HAS_BIAS, False, PRECISION,
        )  # fmt: skip
    acc, best, total = _attend(
        acc, best, total, q, open_end, end, places, length, key_ptr, value_ptr, bias_ptr, key_stride, value_stride,
        bias_stride, scale_log2, HEAD_SIZE, BLOCK_D, BLOCK_KEYS, REACH, HAS_BIAS, True, PRECISION,
    )  # fmt: skip
    out_places = out_ptr + rows * (NUM_HEADS * HEAD_SIZE) + head * HEAD_SIZE + columns[None, :]
    tl.store(out_places, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=mask)


MUTUAL = Kernel(_mutual_kernel)


def mutual_attention(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int], scores: MutualScores) -> Tensor:
    """See `MutualAttention`. Does not wait for the device."""
    q, k, v = map(_with_whole_heads, (q, k, v))
    num_rows, num_heads, head_size = q.shape
    tile = mutual_tile(q.dtype, head_size)
    bias, reach = scores.bias, scores.reach
    assert bias is None or bias.stride(2) == 1
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    if not num_rows:
        return out
    stream = None if q.device.type == "cpu" else torch.cuda.current_stream(q.device)
    MUTUAL[(num_heads, num_rows // tile.block_rows + len(lens))](
        out,
        q,
        k,
        v,
        q if bias is None else bias,
        _starts(tuple(lens), q.device, stream),
        len(lens),
        scores.scale * LOG2_E,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        *((0, 0) if bias is None else bias.stride()[:2]),
        NUM_HEADS=num_heads,
        GROUP=num_heads // k.shape[1],
        HEAD_SIZE=head_size,
        BLOCK_D=max(next_power_of_2(head_size), 16),
        BLOCK_ROWS=tile.block_rows,
        BLOCK_KEYS=tile.block_keys,
        REACH=-1 if reach is None else reach,
        HAS_BIAS=bias is not None,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def _with_whole_heads(x: Tensor) -> Tensor:
    """The heads of a row lie one behind the other."""
    return x if x.stride(2) == 1 and x.stride(1) == x.shape[2] else x.contiguous()


@functools.lru_cache(maxsize=32)
def _starts(lens: tuple[int, ...], device: torch.device, stream: torch.cuda.Stream | None) -> Tensor:
    """The first row of each span, and their end, `[spans + 1]` int32: sent once for all layers of a step.

    Args:
        stream: which sends it; another stream would not wait for it.
    """
    starts = torch.tensor([0, *itertools.accumulate(lens)], dtype=torch.int32)
    return starts if device.type == "cpu" else starts.pin_memory().to(device, non_blocking=True)
