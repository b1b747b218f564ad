"""Attention over latent vectors in the native library: absorbed for few rows, over expanded heads for many.

Absorbed, a score is a product over a whole row of the cache. Expanded, the latents of a context are multiplied by the
heads' matrices first, and keys and values have the heads' own sizes: of GLM-4.7-Flash 256 elements instead of 576. That
is a product per token of the context in place of one per row, so it pays where a span has many rows.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from lullm.ops.attention_layout import CausalScores
from lullm.ops.cache import int8_cache
from lullm.ops.cache.layer_cache import LayerCache
from lullm.ops.cpu.native import DTYPES
from lullm.ops.cpu.native_attention import NativeLayout, attention, multiply_heads, prepare_attention
from lullm.ops.head_products import LatentMatrices, absorbed_over

_MIN_ROWS = 64
"""Least rows of a span that is expanded. For fewer, matrices of heads are not packed (`csrc/head_operation.cpp`)."""

_BLOCK_SIZE = 64
"""Tokens in a block of expanded heads."""

_MAX_BYTES = 16 << 20
"""Bytes of expanded keys at a time. Malloc maps larger ones (32 MiB) anew for each layer, which costs as much again."""

_MAX_TOKENS = 16384
"""Tokens in the contexts of spans that are expanded together."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Consecutive spans that are computed in one way.

    Args:
        first_row, last_row: of the step.
        layout: of these spans; over blocks of expanded heads where there are `slots`, else over the cache.
        slots: `[N]`, of the tokens to be expanded: the spans' contexts, each filled up to whole blocks. None: absorbed.
    """

    first_row: int
    last_row: int
    layout: NativeLayout
    slots: Tensor | None


_attend_absorbed = absorbed_over(multiply_heads, attention)


def attend_latents(
    q: Tensor, matrices: LatentMatrices, cache: LayerCache, prepared: NativeLayout, scores: CausalScores
) -> Tensor:
    """See `Ops.attend_latents`."""
    if prepared.layout.max_query_len < _MIN_ROWS or not _is_expandable(q, matrices):
        return _attend_absorbed(q, matrices, cache, prepared, scores)
    if not prepared.parts:
        prepared.parts = _cut(prepared, q.shape[2], matrices)
    results = []
    for part in prepared.parts:
        rows = q[part.first_row : part.last_row]
        if part.slots is None:
            results.append(_attend_absorbed(rows, matrices, cache, part.layout, scores))
        else:
            results.append(_attend_expanded(rows, matrices, _gather(cache, part.slots, q.dtype), part.layout, scores))
    return results[0] if len(results) == 1 else torch.cat(results)


def _is_expandable(q: Tensor, matrices: LatentMatrices) -> bool:
    """Is there native attention for heads of this size, in which values fit?

    Values are filled up to the size of keys with elements that turn, of which there must be enough.
    """
    num_turned, num_filled = q.shape[2] - matrices.keys.shape[1], q.shape[2] - matrices.values.shape[1]
    return q.dtype in DTYPES and q.shape[2] % 16 == 0 and 0 <= num_filled <= num_turned


def _attend_expanded(
    q: Tensor,  # [T, Hq, query_size]
    matrices: LatentMatrices,
    rows: Tensor,  # [N, D], of the cache
    layout: NativeLayout,
    scores: CausalScores,
) -> Tensor:  # [T, Hq, value_size]
    num_heads, query_size = q.shape[1:]
    value_size = matrices.values.shape[1]
    count = max(1, _MAX_BYTES // (rows.shape[0] * query_size * q.element_size()))
    results = []
    for first in range(0, num_heads, count):
        own = matrices.of_heads(first, first + count)
        inputs = rows.unsqueeze(1).expand(-1, len(own.keys), -1)
        keys = multiply_heads(inputs, own.keys, query_size - own.keys.shape[1])  # [N, heads, query_size]
        values = multiply_heads(inputs, own.values, query_size - value_size)
        cache = LayerCache(keys.unflatten(0, (-1, _BLOCK_SIZE)), values.unflatten(0, (-1, _BLOCK_SIZE)))
        results.append(attention(q[:, first : first + count], cache, layout, scores)[..., :value_size])
    return results[0] if len(results) == 1 else torch.cat(results, dim=1)


def _gather(cache: LayerCache, slots: Tensor, dtype: torch.dtype) -> Tensor:  # [N, D]
    rows = cache.key.flatten(0, 2).index_select(0, slots)
    return int8_cache.dequantize(rows, dtype) if rows.dtype == torch.int8 else rows


def _cut(prepared: NativeLayout, query_size: int, matrices: LatentMatrices) -> list[_Part]:
    """The spans of a step as parts, in their order."""
    layout = prepared.layout
    starts, contexts = layout.query_starts.tolist(), layout.context_lens.tolist()
    kinds = [
        _pays(last - first, context, query_size, matrices)
        for first, last, context in zip(starts, starts[1:], contexts, strict=False)
    ]
    parts, first = [], 0
    for end in range(1, len(kinds) + 1):
        is_full = kinds[first] and sum(contexts[first : end + 1]) > _MAX_TOKENS
        if end == len(kinds) or kinds[end] != kinds[first] or is_full:
            parts.append(_part_of(prepared, first, end, kinds[first]))
            first = end
    return parts


def _pays(num_rows: int, context_len: int, query_size: int, matrices: LatentMatrices) -> bool:
    """Does expanding a context take fewer products than it saves?

    That is where it became faster, within 60 rows: from 235 rows of GLM-4.7-Flash on 1,024 tokens, 290 on 4,096, and
    from 220 of DeepSeek-V2-Lite on 4,096 (Intel Xeon with AMX, 2 cores).
    """
    plain_size, value_size, rank = matrices.keys.shape[1], *matrices.values.shape[1:]
    of_token = (plain_size + value_size) * rank  # absorbed, a row takes as many
    saved = 2 * (rank + query_size - plain_size) - 2 * query_size
    num_seen = context_len - num_rows / 2
    return num_rows >= _MIN_ROWS and num_rows * (num_seen * saved + of_token) > context_len * of_token


def _part_of(prepared: NativeLayout, first: int, end: int, is_expanded: bool) -> _Part:
    """The part for the spans from `first` to before `end`."""
    layout = prepared.layout
    first_row, last_row = int(layout.query_starts[first]), int(layout.query_starts[end])
    tables, block_size, slots = layout.block_tables[first:end], layout.block_size, None
    if is_expanded:
        pieces, tables = [], torch.zeros(end - first, -(-layout.max_context_len // _BLOCK_SIZE), dtype=torch.int64)
        num_before = 0
        for span, context_len in enumerate(layout.context_lens[first:end].tolist()):
            num_blocks = -(-context_len // _BLOCK_SIZE)
            positions = torch.arange(num_blocks * _BLOCK_SIZE).clamp_max(context_len - 1)
            blocks = layout.block_tables[first + span][positions // block_size]
            pieces.append(blocks * block_size + positions % block_size)
            tables[span, :num_blocks] = torch.arange(num_before, num_before + num_blocks)
            num_before += num_blocks
        slots, block_size = torch.cat(pieces), _BLOCK_SIZE
    own = replace(
        layout,
        query_starts=layout.query_starts[first : end + 1] - first_row,
        context_lens=layout.context_lens[first:end],
        block_tables=tables,
        slot_mapping=layout.slot_mapping[first_row:last_row],
        block_size=block_size,
    )
    return _Part(first_row, last_row, prepare_attention(own), slots)
