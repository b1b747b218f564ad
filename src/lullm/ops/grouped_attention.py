"""Attention in torch on a CPU, over groups of similar spans.

Torch's fused attention wants rectangles `[B, heads, Q, D] x [B, heads, L, D]`, and a step is ragged. So the spans
are grouped by shape, each group is padded to its largest, its keys and values are gathered through the block tables
slot by slot, and one fused call serves it. There is no loop per token or head, and one per group only.

Padding never reads memory that was not written: a padded key is a copy of the sequence's last one, a padded query a
copy of the span's last row. Finite inputs stay finite, whatever the rest of the cache holds.

Three kinds of groups, by what the mask costs:
- decode (one query): the query heads that share a key/value head become rows of one small matrix, so keys are read
  once; a mask hides the padding, if there is any.
- fresh (nothing computed before): causal from the corner; no mask, and half the work is skipped.
- continued (a chunk, or the rest of a cached prefix): a mask. Long ones stand alone and are cut into tiles of rows
  that see no more keys than they must and share one mask.

Measured (bfloat16 / float32, microseconds per layer on one core, Hq 16, Hkv 8, D 128), gather + attention:
32 x 160 tokens decode 1440 + 1990 / 2920 + 1840; 4 x 1600 decode 1800 + 2610 / 3700 + 3100; fresh 1024: 14500 / 52000
(with a mask instead: 22000 / 73000); 256 rows on 1500 tokens: 8400 / 32400. The decode attention as matrix products
and a softmax took 1630 / 1730 at its best, but wants the heads gathered apart, which costs more than it saves.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from lullm.ops.attention_layout import AttentionLayout

# Costs of a group of B spans with Q queries on L keys, in units of one query-key pair over all heads: reading a key
# is worth about 30 of them and one more group about 2000 (measured as above).
_KEY_COST = 30
_GROUP_COST = 2000
_MAX_GROUP_KEYS = 8192  # bounds the gathered keys and values
_MAX_MASK_ELEMENTS = 1 << 20  # per group: 4 MiB
_TILE_ROWS = 256


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows `first`..`last` of the padded queries of a group, on its first `num_keys` keys."""

    first: int
    last: int
    num_keys: int
    mask: Tensor | None  # [B or 1, 1, rows, num_keys] float32, added to the scores
    is_causal: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """B spans that one rectangle holds, `[B, Q]` queries on `[B, L]` keys.

    `rows`: the step's rows of the group, in order; a slice where they are consecutive.
    `padded`: for each of the B * Q queries, which of `rows` it is; None if there is no padding.
    `kept`: for each of `rows`, which of the B * Q queries it is; None if there is no padding.
    """

    shape: tuple[int, int, int]  # B, Q, L
    rows: slice | Tensor
    padded: Tensor | None
    kept: Tensor | None
    slots: Tensor  # [B * L]
    tiles: list[_Tile]


@dataclass(slots=True)
class GroupedLayout:
    """The prepared step. The buffers for gathered keys and values are made by the first layer and used by all."""

    slot_mapping: Tensor
    groups: list[_Group]
    buffers: list[Tensor] = field(default_factory=list)


def prepare_attention(layout: AttentionLayout) -> GroupedLayout:
    first_rows = [0]
    for query_len in layout.query_lens:
        first_rows.append(first_rows[-1] + query_len)
    groups = [_build_group(layout, first_rows, spans) for spans in group_spans(layout.query_lens, layout.context_lens)]
    return GroupedLayout(layout.slot_mapping, groups)


def attention(q: Tensor, key_cache: Tensor, value_cache: Tensor, prepared: GroupedLayout, scale: float) -> Tensor:
    num_kv_heads, head_size = key_cache.shape[2:]
    keys_of_slots = key_cache.view(-1, num_kv_heads * head_size)
    values_of_slots = value_cache.view(-1, num_kv_heads * head_size)
    if not prepared.buffers:
        size = (max((group.slots.numel() for group in prepared.groups), default=0), num_kv_heads * head_size)
        prepared.buffers = [torch.empty(size, dtype=key_cache.dtype) for _ in range(2)]
    out = torch.empty(q.shape, dtype=q.dtype)
    for group in prepared.groups:
        num_seqs, query_len, num_keys = group.shape
        kv_shape = (num_seqs, num_keys, num_kv_heads, head_size)
        keys, values = (buffer[: group.slots.numel()] for buffer in prepared.buffers)
        torch.index_select(keys_of_slots, 0, group.slots, out=keys)
        torch.index_select(values_of_slots, 0, group.slots, out=values)
        queries = q[group.rows]
        if group.padded is not None:
            queries = queries.index_select(0, group.padded)
        result = _attend(
            queries.view(num_seqs, query_len, *q.shape[1:]), keys.view(kv_shape), values.view(kv_shape), group, scale
        ).flatten(0, 1)  # [B * Q, Hq, D]
        if group.kept is not None:
            result = result.index_select(0, group.kept)
        out[group.rows] = result
    return out


def _attend(
    q: Tensor,  # [B, Q, Hq, D]
    keys: Tensor,  # [B, L, Hkv, D]
    values: Tensor,
    group: _Group,
    scale: float,
) -> Tensor:  # [B, Q, Hq, D]
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    num_q_heads, num_kv_heads = q.shape[2], keys.shape[1]
    if q.shape[1] == 1:
        q_rows = q.view(q.shape[0], num_kv_heads, num_q_heads // num_kv_heads, q.shape[3])  # [B, Hkv, Hq / Hkv, D]
        mask = group.tiles[0].mask
        return F.scaled_dot_product_attention(q_rows, keys, values, attn_mask=mask, scale=scale).reshape(q.shape)
    results = [
        F.scaled_dot_product_attention(
            q[:, tile.first : tile.last].transpose(1, 2),
            keys[:, :, : tile.num_keys],
            values[:, :, : tile.num_keys],
            attn_mask=tile.mask,
            is_causal=tile.is_causal,
            scale=scale,
            enable_gqa=num_q_heads != num_kv_heads,
        ).transpose(1, 2)
        for tile in group.tiles
    ]
    return results[0] if len(results) == 1 else torch.cat(results, dim=1)


def group_spans(query_lens: list[int], context_lens: list[int]) -> list[list[int]]:
    """Spans (by index) that are computed together; every span is in exactly one group, in ascending order.

    Sorted by shape, neighbours are merged as long as the padding that a merge adds costs less than the call it saves.
    """
    kinds: dict[str, list[int]] = {"decode": [], "fresh": [], "continued": []}
    for span, (query_len, context_len) in enumerate(zip(query_lens, context_lens, strict=True)):
        kind = "decode" if query_len == 1 else "fresh" if query_len == context_len else "continued"
        kinds[kind].append(span)
    groups: list[list[int]] = []
    for kind, spans in kinds.items():
        group: list[int] = []
        num_queries = num_keys = 0  # the group's Q and L
        for span in sorted(spans, key=lambda span: (context_lens[span], query_lens[span])):
            merged_queries, merged_keys = max(num_queries, query_lens[span]), context_lens[span]
            size = len(group) + 1
            apart = _cost(len(group), num_queries, num_keys) + _cost(1, query_lens[span], merged_keys) + _GROUP_COST
            fits = size * merged_keys <= _MAX_GROUP_KEYS and (
                kind != "continued" or size * merged_queries * merged_keys <= _MAX_MASK_ELEMENTS
            )
            if group and fits and _cost(size, merged_queries, merged_keys) <= apart:
                group.append(span)
                num_queries, num_keys = merged_queries, merged_keys
            else:
                group = [span]
                groups.append(group)
                num_queries, num_keys = query_lens[span], merged_keys
    return [sorted(group) for group in groups]


def _cost(size: int, num_queries: int, num_keys: int) -> int:
    return size * num_keys * (_KEY_COST + num_queries)


def _build_group(layout: AttentionLayout, first_rows: list[int], spans: list[int]) -> _Group:
    query_lens = [layout.query_lens[span] for span in spans]
    context_lens = [layout.context_lens[span] for span in spans]
    size, num_queries, num_keys = len(spans), max(query_lens), max(context_lens)
    contexts = torch.tensor(context_lens).unsqueeze(1)  # [B, 1]
    positions = torch.arange(num_keys)  # [L]
    real = positions.clamp_max(contexts - 1)  # [B, L]
    block_ids = layout.block_tables[spans].gather(1, real // layout.block_size)
    rows, padded, kept = _select_rows(first_rows, spans, query_lens)
    return _Group(
        shape=(size, num_queries, num_keys),
        rows=rows,
        padded=padded,
        kept=kept,
        slots=(block_ids * layout.block_size + real % layout.block_size).flatten(),
        tiles=_build_tiles(query_lens, context_lens, positions, contexts),
    )


def _select_rows(
    first_rows: list[int], spans: list[int], query_lens: list[int]
) -> tuple[slice | Tensor, Tensor | None, Tensor | None]:
    """`rows`, `padded` and `kept` of a group."""
    num_queries, num_rows = max(query_lens), sum(query_lens)
    if spans[-1] - spans[0] + 1 == len(spans):
        rows: slice | Tensor = slice(first_rows[spans[0]], first_rows[spans[0]] + num_rows)
    else:
        rows = torch.tensor([row for span in spans for row in range(first_rows[span], first_rows[span + 1])])
    if num_rows == num_queries * len(spans):
        return rows, None, None
    lens = torch.tensor(query_lens)
    starts = lens.cumsum(0) - lens
    padded = starts[:, None] + torch.arange(num_queries).clamp_max(lens[:, None] - 1)  # [B, Q]
    is_real = torch.arange(num_queries) < lens[:, None]
    return rows, padded.flatten(), is_real.flatten().nonzero().squeeze(1)


def _build_tiles(query_lens: list[int], context_lens: list[int], positions: Tensor, contexts: Tensor) -> list[_Tile]:
    num_queries, num_keys = max(query_lens), max(context_lens)
    if num_queries == 1:
        is_padded = min(context_lens) < num_keys
        hidden = (positions >= contexts)[:, None, None, :]  # [B, 1, 1, L]
        return [_Tile(0, 1, num_keys, _mask(hidden) if is_padded else None, False)]
    if query_lens == context_lens:
        # Key j is seen by the rows i >= j, and padding stands after all real rows.
        return [_Tile(0, num_queries, num_keys, None, True)]
    if len(query_lens) == 1 and num_queries > _TILE_ROWS:
        # The last rows of a tile see all its keys, so one mask, counted from its right edge, fits every tile.
        last_seen = torch.arange(num_keys - _TILE_ROWS, num_keys)
        mask = _mask(positions > last_seen[:, None])[None, None]  # [1, 1, tile rows, L]
        tiles = []
        for first in range(0, num_queries, _TILE_ROWS):
            last = min(first + _TILE_ROWS, num_queries)
            seen = num_keys - (num_queries - last)
            tiles.append(_Tile(first, last, seen, mask[:, :, -(last - first) :, num_keys - seen :], False))
        return tiles
    starts = contexts - torch.tensor(query_lens).unsqueeze(1)  # [B, 1]
    last_seen = starts + torch.arange(num_queries)  # [B, Q]
    return [_Tile(0, num_queries, num_keys, _mask(positions > last_seen[:, None, :, None]), False)]


def _mask(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
