"""Attention in torch on a CPU, over groups of similar spans.

Torch's fused attention takes rectangles `[B, heads, Q, D] x [B, heads, L, D]`, and a step is ragged. So the spans are
grouped by shape, and each group is padded to its largest span. Its keys and values are gathered through the block
tables, slot by slot, and one fused call computes it. So there is a loop over groups, but none over tokens or heads.

Padding never reads unwritten memory: a padded key is a copy of the sequence's last key, a padded query a copy of the
span's last row. So finite inputs give finite results, with any contents in the rest of the cache.

Three kinds of groups differ in their masks:
- decode (one query): the query heads that share a key/value head become rows of one small matrix, so keys are read
  once; a mask hides the padding, if there is any.
- fresh (nothing computed before, and all of it in the window): causal from the corner; no mask, and half the work is
  skipped.
- continued (a chunk, or the rest of a cached prefix): a mask. A long span is a group of its own and is cut into tiles
  of rows. A tile sees no more keys than it needs, and all tiles share one mask.

With a sliding window a span's keys are those that one of its rows sees, and all lengths and positions here count from
the first of them. A span over several chunks is one span for each.

Measured (bfloat16 / float32, microseconds per layer on one core, Hq 16, Hkv 8, D 128), gather + attention: 32 x 160
tokens decode 1440 + 1990 / 2920 + 1840; 4 x 1600 decode 1800 + 2610 / 3700 + 3100; fresh 1024: 14500 / 52000 (with a
mask instead: 22000 / 73000); 256 rows on 1500 tokens: 8400 / 32400. Decode attention as matrix products and a softmax
took 1630 / 1730 at best, but needs its heads gathered separately, which costs more than it saves.
"""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lullm.ops.attention_layout import AttentionLayout, CausalScores
from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.float8_cache import as_bytes
from lullm.ops.cache.layer_cache import LayerCache

# Costs of a group of B spans with Q queries on L keys, in units of one query-key pair over all heads: reading a key
# costs about 30 pairs, and one more group about 2000 (measured as above).
_KEY_COST = 30
_GROUP_COST = 2000
_MAX_GROUP_KEYS = 8192  # bounds the gathered keys and values
_MAX_MASK_ELEMENTS = 1 << 20  # per group: 4 MiB
_TILE_ROWS = 256


@dataclass(frozen=True, slots=True)
class _Tile:
    """Rows `first`..`last` - 1 of the padded queries of a group, on its keys `first_key`..`last_key` - 1."""

    first: int
    last: int
    first_key: int
    last_key: int
    mask: Tensor | None  # [B or 1, 1, rows, keys] float32, added to the scores
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
    """The prepared step. The first layer makes the buffers for gathered keys and values; all layers use them."""

    slot_mapping: Tensor
    groups: list[_Group]
    buffers: list[Tensor] = field(default_factory=list)

    def to(self, device: torch.device) -> "GroupedLayout":
        """The same for queries and a cache on another device; masks become boolean, which suit any dtype."""

        def move(x: Tensor | None) -> Tensor | None:
            return None if x is None else x.to(device, non_blocking=True)

        groups = [
            replace(
                group,
                rows=group.rows if isinstance(group.rows, slice) else group.rows.to(device),
                padded=move(group.padded),
                kept=move(group.kept),
                slots=group.slots.to(device),
                tiles=[replace(tile, mask=None if tile.mask is None else move(tile.mask == 0)) for tile in group.tiles],
            )
            for group in self.groups
        ]
        return GroupedLayout(self.slot_mapping.to(device), groups)


def prepare_attention(layout: AttentionLayout) -> GroupedLayout:
    layout = layout.within_chunks()
    first_rows = [0]
    for query_len in layout.query_lens:
        first_rows.append(first_rows[-1] + query_len)
    first_keys = layout.first_keys
    key_lens = [context_len - first for context_len, first in zip(layout.context_lens, first_keys, strict=True)]
    groups = [
        _build_group(layout, first_rows, first_keys, key_lens, spans)
        for spans in group_spans(layout.query_lens, key_lens, layout.window)
    ]
    return GroupedLayout(layout.slot_mapping, groups)


def attention(q: Tensor, cache: LayerCache, prepared: GroupedLayout, scores: CausalScores) -> Tensor:
    (num_kv_heads, row_len), head_size = cache.key.shape[2:], q.shape[2]
    keys_of_slots = as_bytes(cache.key).view(-1, num_kv_heads * row_len)
    values_of_slots = as_bytes(cache.value).view(-1, num_kv_heads * row_len)
    if not prepared.buffers:
        size = (max((group.slots.numel() for group in prepared.groups), default=0), num_kv_heads * row_len)
        prepared.buffers = [torch.empty(size, dtype=cache.key.dtype, device=cache.key.device) for _ in range(2)]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for group in prepared.groups:
        num_seqs, query_len, num_keys = group.shape
        kv_shape = (num_seqs, num_keys, num_kv_heads, row_len)
        keys, values = (buffer[: group.slots.numel()] for buffer in prepared.buffers)
        torch.index_select(keys_of_slots, 0, group.slots, out=as_bytes(keys))
        torch.index_select(values_of_slots, 0, group.slots, out=as_bytes(values))
        keys, values = keys.view(kv_shape), values.view(kv_shape)
        if keys.dtype == torch.int8:
            keys, values = (int8_cache.dequantize(rows, q.dtype, head_size) for rows in (keys, values))
        elif keys.dtype == float8_cache.FLOAT8:
            keys = float8_cache.dequantize(keys, cache.key_scales, q.dtype)
            values = float8_cache.dequantize(values, cache.value_scales, q.dtype)
        keys, values = keys[..., :head_size], values[..., :head_size]
        queries = q[group.rows]
        if group.padded is not None:
            queries = queries.index_select(0, group.padded)
        queries = queries.view(num_seqs, query_len, *q.shape[1:])
        if scores.soft_cap is None and scores.sinks is None:
            result = _attend(queries, keys, values, group, scores.scale)
        else:
            result = _attend_spelled_out(queries, keys, values, group, scores)
        result = result.flatten(0, 1)  # [B * Q, Hq, D]
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
            keys[:, :, tile.first_key : tile.last_key],
            values[:, :, tile.first_key : tile.last_key],
            attn_mask=tile.mask,
            is_causal=tile.is_causal,
            scale=scale,
            enable_gqa=num_q_heads != num_kv_heads,
        ).transpose(1, 2)
        for tile in group.tiles
    ]
    return results[0] if len(results) == 1 else torch.cat(results, dim=1)


def _attend_spelled_out(
    q: Tensor,  # [B, Q, Hq, D]
    keys: Tensor,  # [B, L, Hkv, D]
    values: Tensor,
    group: _Group,
    scores: CausalScores,
) -> Tensor:  # [B, Q, Hq, D]
    """Attention with capped scores and sinks, which torch's fused attention lacks. In float32."""
    size, _, num_q_heads, head_size = q.shape
    num_kv_heads = keys.shape[2]
    keys, values = keys.float().permute(0, 2, 3, 1), values.float().transpose(1, 2)  # [B, Hkv, D, L], [B, Hkv, L, D]
    results = []
    for tile in group.tiles:
        num_rows, seen = tile.last - tile.first, slice(tile.first_key, tile.last_key)
        rows = q[:, tile.first : tile.last].float().unflatten(2, (num_kv_heads, -1)).permute(0, 2, 3, 1, 4)
        products = rows.flatten(2, 3) @ keys[..., seen] * scores.scale  # [B, Hkv, heads of a group * rows, keys]
        products = products.view(size, num_q_heads, num_rows, -1)
        if scores.soft_cap is not None:
            products = products.div_(scores.soft_cap).tanh_().mul_(scores.soft_cap)
        if tile.is_causal:
            unseen = torch.ones(products.shape[2:], dtype=torch.bool, device=q.device).triu_(1)
            products.masked_fill_(unseen, -torch.inf)
        elif tile.mask is not None:
            # Other devices have boolean masks (`GroupedLayout.to`), true where a key is seen.
            mask = tile.mask
            products = products + mask if mask.dtype != torch.bool else products.masked_fill_(~mask, -torch.inf)
        if scores.sinks is None:
            shares = products.softmax(dim=-1)
        else:  # one key more, with the value 0
            column = scores.sinks.float()[:, None, None].expand(size, -1, num_rows, 1)
            shares = torch.cat((products, column), dim=-1).softmax(dim=-1)[..., :-1]
        shares = shares.reshape(size, num_kv_heads, -1, shares.shape[-1])
        result = (shares @ values[:, :, seen]).view(size, num_q_heads, num_rows, head_size)
        results.append(result.transpose(1, 2))
    return torch.cat(results, dim=1).to(q.dtype)


def group_spans(query_lens: list[int], key_lens: list[int], window: int | None = None) -> list[list[int]]:
    """Spans (by index) that are computed together; every span is in exactly one group, in ascending order.

    Sorted by shape, neighbours are merged as long as the added padding costs less than the saved call.
    """
    kinds: dict[str, list[int]] = {"decode": [], "fresh": [], "continued": []}
    for span, (query_len, key_len) in enumerate(zip(query_lens, key_lens, strict=True)):
        is_fresh = _is_fresh(query_len, key_len, window)
        kinds["decode" if query_len == 1 else "fresh" if is_fresh else "continued"].append(span)
    groups: list[list[int]] = []
    for kind, spans in kinds.items():
        group: list[int] = []
        num_queries = num_keys = 0  # the group's Q and L
        for span in sorted(spans, key=lambda span: (key_lens[span], query_lens[span])):
            merged_queries, merged_keys = max(num_queries, query_lens[span]), key_lens[span]
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


def _is_fresh(query_len: int, key_len: int, window: int | None) -> bool:
    """Whether row i sees exactly the keys 0..i."""
    return query_len == key_len and (window is None or query_len <= window)


def _cost(size: int, num_queries: int, num_keys: int) -> int:
    return size * num_keys * (_KEY_COST + num_queries)


def _build_group(
    layout: AttentionLayout, first_rows: list[int], first_keys: list[int], key_lens: list[int], spans: list[int]
) -> _Group:
    query_lens = [layout.query_lens[span] for span in spans]
    key_lens = [key_lens[span] for span in spans]
    size, num_queries, num_keys = len(spans), max(query_lens), max(key_lens)
    lens = torch.tensor(key_lens).unsqueeze(1)  # [B, 1]
    keys = torch.arange(num_keys)  # [L]
    real = keys.clamp_max(lens - 1) + torch.tensor([first_keys[span] for span in spans]).unsqueeze(1)  # [B, L]
    block_ids = layout.block_tables[spans].gather(1, real // layout.block_size)
    rows, padded, kept = _select_rows(first_rows, spans, query_lens)
    return _Group(
        shape=(size, num_queries, num_keys),
        rows=rows,
        padded=padded,
        kept=kept,
        slots=(block_ids * layout.block_size + real % layout.block_size).flatten(),
        tiles=_build_tiles(query_lens, key_lens, keys, lens, layout.window),
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


def _build_tiles(
    query_lens: list[int], key_lens: list[int], keys: Tensor, lens: Tensor, window: int | None
) -> list[_Tile]:
    num_queries, num_keys = max(query_lens), max(key_lens)
    if num_queries == 1:
        is_padded = min(key_lens) < num_keys
        hidden = (keys >= lens)[:, None, None, :]  # [B, 1, 1, L]
        return [_Tile(0, 1, 0, num_keys, _mask(hidden) if is_padded else None, False)]
    if query_lens == key_lens and _is_fresh(num_queries, num_keys, window):
        # Key j is seen by the rows i >= j, and padding stands after all real rows.
        return [_Tile(0, num_queries, 0, num_keys, None, True)]
    if len(query_lens) == 1 and num_queries > _TILE_ROWS:
        # The last rows of a tile see all its keys, so one mask, counted from its right edge, fits every tile.
        width = num_keys if window is None else min(_TILE_ROWS + window - 1, num_keys)
        last_seen = torch.arange(width - _TILE_ROWS, width)[:, None]
        mask = _mask(_is_hidden(torch.arange(width), last_seen, window))[None, None]  # [1, 1, tile rows, width]
        tiles = []
        for first in range(0, num_queries, _TILE_ROWS):
            last = min(first + _TILE_ROWS, num_queries)
            last_key = num_keys - (num_queries - last)
            first_key = max(last_key - width, 0)
            part = mask[:, :, -(last - first) :, width - (last_key - first_key) :]
            tiles.append(_Tile(first, last, first_key, last_key, part, False))
        return tiles
    starts = lens - torch.tensor(query_lens).unsqueeze(1)  # [B, 1]
    last_seen = (starts + torch.arange(num_queries)).clamp_max(lens - 1)  # [B, Q]
    hidden = _is_hidden(keys, last_seen[:, None, :, None], window)
    return [_Tile(0, num_queries, 0, num_keys, _mask(hidden), False)]


def _is_hidden(keys: Tensor, last_seen: Tensor, window: int | None) -> Tensor:
    """Which keys a row does not see. `last_seen`: its own key, the last that it sees."""
    hidden = keys > last_seen
    return hidden if window is None else hidden | (keys <= last_seen - window)


def _mask(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))
