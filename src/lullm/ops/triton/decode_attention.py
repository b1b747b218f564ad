"""Attention of one query token per sequence over the paged cache, split along the context.

A program computes one key/value head of one sequence for a part of its context. The query heads that share the head are
the rows of a matrix product (padded to 16, the minimum of the matrix unit), so that keys and values are read once. The
softmax is the online one (https://arxiv.org/abs/1805.02867), in base 2.

The number of parts depends on the sequence's context length, which the device reads, and on the launch's maximum, which
depends on the number of sequences only. So a recorded launch is valid for any contexts. A program without a part ends
at once. A single part is the result. Several parts go to scratch memory. The last program to end, known by a semaphore,
adds them up, always in the same order (flash-decoding, https://crfm.stanford.edu/2023/10/12/flashdecoding.html, without
its second launch).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.triton.device import num_multiprocessors
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.overlap import overlap_options, wait_for_inputs
from lullm.ops.triton.tile import PROGRAMS_PER_MULTIPROCESSOR, DecodeTile
from lullm.units import cdiv, next_power_of_2

MAX_SPLITS = 32
MAX_NUM_KV_HEADS = 128
LOG2_E = 1.4426950408889634
LOG2_OF_E = tl.constexpr(LOG2_E)
"""For the kernels."""


def num_splits(num_seqs: int, num_kv_heads: int, max_context_len: int, tile: DecodeTile) -> int:
    """The most parts of a long context: enough to fill the device, whatever the lengths.

    The number of sequences is rounded up to a power of two. So a batch has the same parts, and the same bits, when it
    is padded to a graph's size.
    """
    if max_context_len <= tile.min_split_keys:
        return 1  # any other number has the same result, but needs scratch memory
    num_programs = next_power_of_2(num_seqs) * num_kv_heads
    wanted = cdiv(num_multiprocessors() * PROGRAMS_PER_MULTIPROCESSOR, num_programs)
    return min(next_power_of_2(wanted), MAX_SPLITS)


@triton.jit
def first_seen(positions, WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr):
    """The first keys that rows at these positions see; below 0: all."""
    if IS_CHUNKED:
        return positions - positions % WINDOW
    return positions - WINDOW + 1


@triton.jit
def cap_softly(scores, cap):
    """`cap * tanh(score / cap)` of scores in base 2, as everywhere here; the cap is for natural scores."""
    grown = tl.math.exp2(scores * (2.0 / cap))  # possibly infinity: then tanh is 1
    return (1.0 - 2.0 / (grown + 1.0)) * (cap * LOG2_OF_E)


@triton.jit
def _add_up(partial_ptr, partial_lse_ptr, first, num_parts, columns, column_mask, GROUP: tl.constexpr,
            HEAD_SIZE: tl.constexpr, MAX_SPLITS: tl.constexpr):  # fmt: skip
    """One query head's result from other programs' new parts, read past the first-level cache."""
    parts = tl.arange(0, MAX_SPLITS)
    mask = parts < num_parts
    places = first + parts * GROUP
    lse = tl.load(partial_lse_ptr + places, mask=mask, other=float("-inf"), cache_modifier=".cg")
    shares = tl.math.exp2(lse - tl.max(lse, 0))
    places = places[:, None] * HEAD_SIZE + columns[None, :]
    mask = mask[:, None] & column_mask[None, :]
    values = tl.load(partial_ptr + places, mask=mask, other=0.0, cache_modifier=".cg")
    return tl.sum(values * shares[:, None], 0) / tl.sum(shares, 0)


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["query_starts_ptr", "context_lens_ptr", "block_tables_ptr"],
)
def _decode_kernel(
    out_ptr,  # [T, Hq, D]
    q_ptr,
    key_ptr,  # [num_blocks, block_size, Hkv, D]
    value_ptr,
    key_scales_ptr,
    value_scales_ptr,
    sinks_ptr,  # [Hq] float32
    query_starts_ptr,
    context_lens_ptr,
    block_tables_ptr,
    partial_ptr,  # [S, Hkv, splits, GROUP, D] float32
    partial_lse_ptr,  # [S, Hkv, splits, GROUP] float32: log2 of the sum of exponentials
    semaphores_ptr,
    scale_log2,
    q_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,  # query heads per key/value head
    ROWS: tl.constexpr,  # a power of two, at least 16 and GROUP
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,  # a power of two, at least 16 and D
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: none
    IS_CHUNKED: tl.constexpr,
    MAX_SPLITS: tl.constexpr,  # a power of two, at least the launch's splits
    MIN_SPLIT_KEYS: tl.constexpr,
    MAX_HEADS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SOFT_CAP: tl.constexpr,  # 0: none
    PRECISION: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    wait_for_inputs(OVERLAPS)
    kv_head = tl.program_id(0)
    span = tl.program_id(1)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    query_row = tl.load(query_starts_ptr + span)
    if tl.load(query_starts_ptr + span + 1) - query_row != 1:
        return  # a longer span: the prefill kernel's
    context_len = tl.load(context_lens_ptr + span)
    first_key = 0
    if WINDOW:
        first_key = tl.maximum(first_seen(context_len - 1, WINDOW, IS_CHUNKED), 0)
    first_turn = first_key // BLOCK_KEYS * BLOCK_KEYS
    split_keys = tl.cdiv(tl.cdiv(context_len - first_turn, num_splits), BLOCK_KEYS) * BLOCK_KEYS
    split_keys = tl.maximum(split_keys, MIN_SPLIT_KEYS)
    num_parts = tl.cdiv(context_len - first_turn, split_keys)
    if split >= tl.maximum(num_parts, 1):
        return
    begin = first_turn + split * split_keys
    end = tl.minimum(begin + split_keys, context_len)

    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, BLOCK_D)
    row_mask = rows < GROUP
    column_mask = columns < HEAD_SIZE
    out_mask = row_mask[:, None] & column_mask[None, :]
    head_places = (kv_head * GROUP + rows)[:, None] * HEAD_SIZE + columns[None, :]
    q = tl.load(q_ptr + query_row.to(tl.int64) * q_stride + head_places, mask=out_mask, other=0.0)
    if key_ptr.dtype.element_ty == tl.float8e4nv and q.dtype == tl.bfloat16:
        q = q.to(tl.float16)  # the one type that e4m3 becomes in one instruction
    table_ptr = block_tables_ptr + span.to(tl.int64) * table_stride
    if HAS_SCALES:
        scale_log2 *= tl.load(key_scales_ptr + kv_head)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_D], tl.float32)
    if HAS_SINKS:  # a score beside those of the keys, without a value, in the first part
        sinks = tl.load(sinks_ptr + kv_head * GROUP + rows, mask=row_mask, other=0.0) * LOG2_OF_E
        best = tl.where(split == 0, sinks, best)
        total = tl.where(split == 0, 1.0, total)
    for turn in range(begin, end, BLOCK_KEYS):
        keys = turn + tl.arange(0, BLOCK_KEYS)
        seen = keys < end
        if WINDOW:
            seen = seen & (keys >= first_key)
        block_ids = tl.load(table_ptr + keys // BLOCK_SIZE, mask=seen, other=0).to(tl.int64)
        slots = block_ids * BLOCK_SIZE + keys % BLOCK_SIZE
        places = (slots * NUM_KV_HEADS + kv_head) * HEAD_SIZE
        key_places, value_places = places[None, :] + columns[:, None], places[:, None] + columns[None, :]
        k = tl.load(key_ptr + key_places, mask=seen[None, :] & column_mask[:, None], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale_log2
        if SOFT_CAP > 0.0:
            scores = cap_softly(scores, SOFT_CAP)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))  # finite: every turn has a key that is seen
        weights = tl.math.exp2(scores - new_best[:, None])
        rescale = tl.math.exp2(best - new_best)
        v = tl.load(value_ptr + value_places, mask=seen[:, None] & column_mask[None, :], other=0.0)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * rescale[:, None], input_precision=PRECISION)
        best = new_best

    acc = acc / tl.where(total > 0, total, 1.0)[:, None]  # a row without context gives zeros
    if HAS_SCALES:
        acc = acc * tl.load(value_scales_ptr + kv_head)
    out_places = out_ptr + query_row.to(tl.int64) * (NUM_KV_HEADS * GROUP * HEAD_SIZE) + head_places
    if num_parts <= 1:
        tl.store(out_places, acc.to(out_ptr.dtype.element_ty), mask=out_mask)
    else:
        lane = (span * NUM_KV_HEADS + kv_head).to(tl.int64) * num_splits * GROUP
        places = lane + split * GROUP + rows
        tl.store(partial_ptr + places[:, None] * HEAD_SIZE + columns[None, :], acc, mask=out_mask)
        tl.store(partial_lse_ptr + places, best + tl.math.log2(total), mask=row_mask)
        tl.debug_barrier()  # all threads' parts are written before one of them signals it
        semaphore = semaphores_ptr + span * MAX_HEADS + kv_head
        if tl.atomic_add(semaphore, 1, sem="acq_rel") == num_parts - 1:
            head_ptr = out_ptr + (query_row.to(tl.int64) * NUM_KV_HEADS + kv_head) * (GROUP * HEAD_SIZE)
            for row in range(GROUP):
                out = _add_up(partial_ptr, partial_lse_ptr, lane + row, num_parts, columns, column_mask, GROUP,
                              HEAD_SIZE, MAX_SPLITS)  # fmt: skip
                tl.store(head_ptr + row * HEAD_SIZE + columns, out.to(out_ptr.dtype.element_ty), mask=column_mask)
            tl.store(semaphore, 0)


DECODE = Kernel(_decode_kernel)


def launch_decode(
    out: Tensor,
    q: Tensor,
    cache: LayerCache,
    layout: DeviceLayout,
    scores: CausalScores,
    tile: DecodeTile,
) -> None:
    """Fill the rows of `out` that belong to spans of one token; other rows are not changed."""
    num_q_heads, head_size = q.shape[1:]
    num_kv_heads = cache.num_kv_heads
    assert num_kv_heads <= MAX_NUM_KV_HEADS
    group = num_q_heads // num_kv_heads
    splits = num_splits(layout.num_spans, num_kv_heads, layout.max_context_len, tile)
    lanes = layout.num_spans * num_kv_heads * splits * group
    scratch = torch.empty(lanes * (head_size + 1) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    DECODE[(num_kv_heads, layout.num_spans, splits)](
        out,
        q,
        cache.key,
        cache.value,
        scratch if cache.key_scales is None else cache.key_scales,
        scratch if cache.value_scales is None else cache.value_scales,
        scratch if scores.sinks is None else scores.sinks,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        scratch,
        scratch[lanes * head_size :] if splits > 1 else scratch,
        layout.semaphores,
        scores.scale * LOG2_E,
        q.stride(0),
        layout.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        ROWS=max(next_power_of_2(group), 16),
        HEAD_SIZE=head_size,
        BLOCK_D=max(next_power_of_2(head_size), 16),
        BLOCK_SIZE=cache.block_size,
        BLOCK_KEYS=tile.block_keys,
        WINDOW=layout.window or 0,
        IS_CHUNKED=layout.is_chunked,
        MAX_SPLITS=MAX_SPLITS,
        MIN_SPLIT_KEYS=tile.min_split_keys,
        MAX_HEADS=MAX_NUM_KV_HEADS,
        HAS_SCALES=cache.key_scales is not None,
        HAS_SINKS=scores.sinks is not None,
        SOFT_CAP=scores.soft_cap or 0.0,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        **overlap_options(),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
