"""Attention of spans of several tokens over the paged cache: chunks of prompts, with or without a cached prefix.

A program computes one key/value head for a tile of tokens of one span; the tokens' query heads that share the head are
its rows. It goes over the keys with the online softmax of flash attention (https://arxiv.org/abs/2205.14135), base 2.
Iterations in which every row sees every key use no mask. The last tiles of a span come first, since they have the most
keys.

If the tiles are too few to fill the device (a short chunk on a long prefix), several programs divide each tile's keys,
as in `decode_attention`: parts go to scratch memory, and the last program to end adds them up in order.

`launch_tiles` can serve all spans with one tile and without splits. Then a row's iterations begin at multiples of the
tile's keys, and its bits depend only on its own sequence: iterations without a visible key do not change a row.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.ops.triton.decode_attention import LOG2_E, LOG2_OF_E, MAX_SPLITS, cap_softly, first_seen
from lullm.ops.triton.device import num_multiprocessors
from lullm.ops.triton.launch import Kernel
from lullm.ops.triton.tile import PrefillTile, split_tile
from lullm.units import next_power_of_2

MAX_SCRATCH_VALUES = 1 << 24
"""The most float32 numbers of scratch memory for the parts of one launch."""


def rows_of_tile(tile: PrefillTile, group: int) -> int:
    return max(tile.block_rows, next_power_of_2(group))


def num_prefill_splits(
    layout: DeviceLayout, num_q_heads: int, num_kv_heads: int, head_size: int, tile: PrefillTile
) -> int:
    """The most parts of a tile's keys, so that all programs run at once, one per multiprocessor."""
    group = num_q_heads // num_kv_heads
    tile_len = rows_of_tile(tile, group) // group
    num_tiles = layout.num_prefill_tokens // tile_len + layout.num_prefill_spans
    room = layout.slot_mapping.shape[0] // tile_len + layout.num_spans
    if layout.max_context_len <= tile.min_split_keys or room * num_kv_heads > len(layout.semaphores):
        return 1
    wanted = num_multiprocessors() // max(num_tiles * num_kv_heads, 1)
    split_values = layout.slot_mapping.shape[0] * num_q_heads * (head_size + 1)
    return max(1, min(wanted, MAX_SPLITS, MAX_SCRATCH_VALUES // split_values))


@triton.jit
def span_of_tile(starts_ptr, num_spans, tile, TILE_LEN: tl.constexpr):
    """The span of a tile, by bisection: span i begins at tile `starts[i] // TILE_LEN + i`, so all of its tiles fit."""
    span = 0
    beyond = num_spans
    while beyond - span > 1:
        middle = (span + beyond) // 2
        is_before = tl.load(starts_ptr + middle) // TILE_LEN + middle <= tile
        span = tl.where(is_before, middle, span)
        beyond = tl.where(is_before, beyond, middle)
    return span


@triton.jit
def _attend(
    acc, best, total, q, begin, end, positions, last_position, table_ptr, key_ptr, value_ptr, kv_head, scale_log2,
    NUM_KV_HEADS: tl.constexpr, HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr, WINDOW: tl.constexpr, IS_CHUNKED: tl.constexpr, IS_MASKED: tl.constexpr, first_key,
    IS_SPLIT: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The keys `begin`..`end` - 1. Both are multiples of BLOCK_KEYS, except the end of the last turn."""
    columns = tl.arange(0, BLOCK_D)
    column_mask = columns < HEAD_SIZE
    for turn in range(begin, end, BLOCK_KEYS):
        keys = turn + tl.arange(0, BLOCK_KEYS)
        if IS_MASKED:
            present = (keys <= last_position) & (keys >= first_key)
            block_ids = tl.load(table_ptr + keys // BLOCK_SIZE, mask=present, other=0).to(tl.int64)
        else:
            block_ids = tl.load(table_ptr + keys // BLOCK_SIZE).to(tl.int64)
        places = ((block_ids * BLOCK_SIZE + keys % BLOCK_SIZE) * NUM_KV_HEADS + kv_head) * HEAD_SIZE
        key_places = key_ptr + places[None, :] + columns[:, None]
        value_places = value_ptr + places[:, None] + columns[None, :]
        if IS_MASKED:
            k = tl.load(key_places, mask=present[None, :] & column_mask[:, None], other=0.0)
            v = tl.load(value_places, mask=present[:, None] & column_mask[None, :], other=0.0)
        elif HEAD_SIZE != BLOCK_D:
            k = tl.load(key_places, mask=column_mask[:, None], other=0.0)
            v = tl.load(value_places, mask=column_mask[None, :], other=0.0)
        else:
            k = tl.load(key_places)
            v = tl.load(value_places)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION)
        factor = scale_log2  # on the softmax's input
        if SOFT_CAP > 0.0:
            scores = cap_softly(scores * scale_log2, SOFT_CAP)
            factor = 1.0
        if IS_MASKED:
            seen = keys[None, :] <= positions[:, None]
            if WINDOW:
                seen = seen & (keys[None, :] >= first_seen(positions, WINDOW, IS_CHUNKED)[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1) * factor)
        shift = new_best
        if IS_MASKED and (WINDOW or IS_SPLIT):
            shift = tl.where(new_best == float("-inf"), 0.0, new_best)  # a row that sees none of these keys
        weights = tl.math.exp2(scores * factor - shift[:, None])
        rescale = tl.math.exp2(best - shift)
        total = total * rescale + tl.sum(weights, 1)
        acc = tl.dot(weights.to(q.dtype), v.to(q.dtype), acc * rescale[:, None], input_precision=PRECISION)
        best = new_best
    return acc, best, total


@triton.jit(
    do_not_specialize=["table_stride", "num_spans"],
    do_not_specialize_on_alignment=["query_starts_ptr", "context_lens_ptr", "block_tables_ptr"],
)
def _prefill_kernel(
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
    partial_ptr,  # [T, Hq, splits, D] float32
    partial_lse_ptr,  # [T, Hq, splits] float32: log2 of the sum of exponentials
    semaphores_ptr,
    num_spans,
    scale_log2,
    q_stride,
    table_stride,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    TILE_LEN: tl.constexpr,  # tokens
    BLOCK_ROWS: tl.constexpr,  # at least TILE_LEN * GROUP
    HEAD_SIZE: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    IS_CHUNKED: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SOFT_CAP: tl.constexpr,  # 0: none
    IS_SPLIT: tl.constexpr,
    TAKES_DECODES: tl.constexpr,  # spans of one token too
    MIN_SPLIT_KEYS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    span = span_of_tile(query_starts_ptr, num_spans, tile, TILE_LEN)
    span_row = tl.load(query_starts_ptr + span)
    query_len = tl.load(query_starts_ptr + span + 1) - span_row
    first_token = (tile - span_row // TILE_LEN - span) * TILE_LEN
    if (first_token >= query_len) | ((query_len == 1) & (not TAKES_DECODES)):  # spare room, or a decode
        return
    start = tl.load(context_lens_ptr + span) - query_len
    first_position = start + first_token
    last_position = start + tl.minimum(first_token + TILE_LEN, query_len) - 1
    first_key = 0
    if WINDOW:
        first_key = tl.maximum(first_seen(first_position, WINDOW, IS_CHUNKED), 0)
    first_turn = first_key // BLOCK_KEYS * BLOCK_KEYS
    begin = first_turn
    end = last_position + 1
    if IS_SPLIT:
        split = tl.program_id(2)
        num_splits = tl.num_programs(2)
        split_keys = tl.cdiv(tl.cdiv(end - first_turn, num_splits), BLOCK_KEYS) * BLOCK_KEYS
        split_keys = tl.maximum(split_keys, MIN_SPLIT_KEYS)
        num_parts = tl.cdiv(end - first_turn, split_keys)
        if split >= num_parts:
            return
        begin += split * split_keys
        end = tl.minimum(begin + split_keys, end)

    rows = tl.arange(0, BLOCK_ROWS)
    columns = tl.arange(0, BLOCK_D)
    tokens = first_token + rows // GROUP
    row_mask = (tokens < query_len) & (rows < TILE_LEN * GROUP)
    out_mask = row_mask[:, None] & (columns < HEAD_SIZE)[None, :]
    head_places = (kv_head * GROUP + rows % GROUP)[:, None] * HEAD_SIZE + columns[None, :]
    token_rows = (span_row + tokens).to(tl.int64)[:, None]
    q = tl.load(q_ptr + token_rows * q_stride + head_places, mask=out_mask, other=0.0)
    positions = tl.minimum(start + tokens, last_position)  # rows of padding see the last row's keys
    if key_ptr.dtype.element_ty == tl.float8e4nv and q.dtype == tl.bfloat16:
        q = q.to(tl.float16)  # the one type that e4m3 becomes in one instruction
    table_ptr = block_tables_ptr + span.to(tl.int64) * table_stride
    if HAS_SCALES:
        scale_log2 *= tl.load(key_scales_ptr + kv_head)

    best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_ROWS], tl.float32)
    acc = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
    if HAS_SINKS:  # as in the decode kernel
        sinks = tl.load(sinks_ptr + kv_head * GROUP + rows % GROUP) * LOG2_OF_E
        best = tl.where(begin == first_turn, sinks, best)
        total = tl.where(begin == first_turn, 1.0, total)
    open_begin = begin
    open_end = (first_position + 1) // BLOCK_KEYS * BLOCK_KEYS  # keys before it are seen by all rows, without a window
    if IS_SPLIT:
        open_end = tl.maximum(tl.minimum(open_end, end), begin)
    if WINDOW:
        open_begin = tl.cdiv(tl.maximum(first_seen(last_position, WINDOW, IS_CHUNKED), 0), BLOCK_KEYS) * BLOCK_KEYS
        open_begin = tl.maximum(tl.minimum(open_begin, open_end), begin)
        acc, best, total = _attend(
            acc, best, total, q, begin, open_begin, positions, last_position, table_ptr, key_ptr, value_ptr, kv_head,
            scale_log2, NUM_KV_HEADS, HEAD_SIZE, BLOCK_D, BLOCK_SIZE, BLOCK_KEYS, WINDOW, IS_CHUNKED, True, first_key,
            IS_SPLIT, SOFT_CAP, PRECISION,
        )  # fmt: skip
    acc, best, total = _attend(
        acc, best, total, q, open_begin, open_end, positions, last_position, table_ptr, key_ptr, value_ptr, kv_head,
        scale_log2, NUM_KV_HEADS, HEAD_SIZE, BLOCK_D, BLOCK_SIZE, BLOCK_KEYS, WINDOW, IS_CHUNKED, False, first_key,
        IS_SPLIT, SOFT_CAP, PRECISION,
    )  # fmt: skip
    acc, best, total = _attend(
        acc, best, total, q, open_end, end, positions, last_position, table_ptr, key_ptr, value_ptr, kv_head,
        scale_log2, NUM_KV_HEADS, HEAD_SIZE, BLOCK_D, BLOCK_SIZE, BLOCK_KEYS, WINDOW, IS_CHUNKED, True, first_key,
        IS_SPLIT, SOFT_CAP, PRECISION,
    )  # fmt: skip

    divisor = total
    if IS_SPLIT or TAKES_DECODES:
        divisor = tl.where(total > 0, total, 1.0)  # a row without context, or that sees none of a part's keys
    acc = acc / divisor[:, None]
    if HAS_SCALES:
        acc = acc * tl.load(value_scales_ptr + kv_head)
    out_places = out_ptr + token_rows * (NUM_KV_HEADS * GROUP * HEAD_SIZE) + head_places
    if IS_SPLIT:
        if num_parts > 1:
            heads = kv_head * GROUP + rows % GROUP
            lanes = ((span_row + tokens).to(tl.int64) * (NUM_KV_HEADS * GROUP) + heads) * num_splits
            places = partial_ptr + lanes[:, None] * HEAD_SIZE + columns[None, :]
            tl.store(places + split * HEAD_SIZE, acc, mask=out_mask)
            lse = tl.where(total > 0, best + tl.math.log2(divisor), float("-inf"))
            tl.store(partial_lse_ptr + lanes + split, lse, mask=row_mask)
            tl.debug_barrier()  # all threads' parts are written before one of them signals it
            semaphore = semaphores_ptr + tile * NUM_KV_HEADS + kv_head
            if tl.atomic_add(semaphore, 1, sem="acq_rel") == num_parts - 1:
                best = tl.full([BLOCK_ROWS], float("-inf"), tl.float32)
                for part in range(num_parts):
                    lse = tl.load(partial_lse_ptr + lanes + part, mask=row_mask, other=0.0, cache_modifier=".cg")
                    best = tl.maximum(best, lse)
                acc = tl.zeros([BLOCK_ROWS, BLOCK_D], tl.float32)
                total = tl.zeros([BLOCK_ROWS], tl.float32)
                for part in range(num_parts):
                    lse = tl.load(partial_lse_ptr + lanes + part, mask=row_mask, other=0.0, cache_modifier=".cg")
                    share = tl.math.exp2(lse - best)
                    total += share
                    acc += share[:, None] * tl.load(
                        places + part * HEAD_SIZE, mask=out_mask, other=0.0, cache_modifier=".cg"
                    )
                tl.store(out_places, (acc / total[:, None]).to(out_ptr.dtype.element_ty), mask=out_mask)
                tl.store(semaphore, 0)
        else:
            tl.store(out_places, acc.to(out_ptr.dtype.element_ty), mask=out_mask)
    else:
        tl.store(out_places, acc.to(out_ptr.dtype.element_ty), mask=out_mask)


PREFILL = Kernel(_prefill_kernel)


def launch_prefill(
    out: Tensor,
    q: Tensor,
    cache: LayerCache,
    layout: DeviceLayout,
    scores: CausalScores,
    tile: PrefillTile,
) -> None:
    """Fill the rows of `out` that belong to spans of more than one token; other rows are not changed."""
    num_q_heads, head_size = q.shape[1:]
    num_kv_heads = cache.num_kv_heads
    splits = num_prefill_splits(layout, num_q_heads, num_kv_heads, head_size, tile)
    if splits > 1:
        tile = split_tile(tile)
        splits = num_prefill_splits(layout, num_q_heads, num_kv_heads, head_size, tile)
    launch_tiles(out, q, cache, layout, scores, tile, splits, False)


def launch_tiles(
    out: Tensor,
    q: Tensor,
    cache: LayerCache,
    layout: DeviceLayout,
    scores: CausalScores,
    tile: PrefillTile,
    splits: int,
    takes_decodes: bool,
) -> None:
    """Fill rows of `out`. With `takes_decodes` and without splits: all rows, and their bits depend only on their own
    sequence.
    """
    num_tokens, num_q_heads, head_size = q.shape
    num_kv_heads = cache.num_kv_heads
    group = num_q_heads // num_kv_heads
    block_rows = rows_of_tile(tile, group)
    tile_len = block_rows // group
    num_tiles = num_tokens // tile_len + layout.num_spans
    lanes = num_tokens * num_q_heads * splits
    scratch = torch.empty(lanes * (head_size + 1) if splits > 1 else 1, dtype=torch.float32, device=q.device)
    PREFILL[(num_kv_heads, num_tiles, splits)](
        out,
        q,
        cache.key,
        cache.value,
        q if cache.key_scales is None else cache.key_scales,
        q if cache.value_scales is None else cache.value_scales,
        q if scores.sinks is None else scores.sinks,
        layout.query_starts,
        layout.context_lens,
        layout.block_tables,
        scratch,
        scratch[lanes * head_size :] if splits > 1 else scratch,
        layout.semaphores,
        layout.num_spans,
        scores.scale * LOG2_E,
        q.stride(0),
        layout.block_tables.stride(0),
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        TILE_LEN=tile_len,
        BLOCK_ROWS=block_rows,
        HEAD_SIZE=head_size,
        BLOCK_D=max(next_power_of_2(head_size), 16),
        BLOCK_SIZE=cache.block_size,
        BLOCK_KEYS=tile.block_keys,
        WINDOW=layout.window or 0,
        IS_CHUNKED=layout.is_chunked,
        HAS_SCALES=cache.key_scales is not None,
        HAS_SINKS=scores.sinks is not None,
        SOFT_CAP=scores.soft_cap or 0.0,
        IS_SPLIT=splits > 1,
        TAKES_DECODES=takes_decodes,
        MIN_SPLIT_KEYS=tile.min_split_keys,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
