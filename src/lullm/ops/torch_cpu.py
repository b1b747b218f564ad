"""The ops in torch on a CPU: the fast version that needs nothing compiled. Attention is in `grouped_attention`.

Where several spellings existed the quickest was taken, by the best of many runs on one core with AVX-512 and AMX;
times in microseconds for T = 1 / 32 / 1024 rows in bfloat16.
"""

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lullm.ops import grouped_attention
from lullm.ops.activation import gate
from lullm.ops.attention_layout import MutualScores
from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.block_pairs import BlockPairs, independent_batches
from lullm.ops.cache.float8_cache import as_bytes
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.device_layout import DeviceLayout
from lullm.types.arithmetic import Activation
from lullm.units import round_up


def prepare_attention(layout: DeviceLayout) -> grouped_attention.GroupedLayout:
    return grouped_attention.prepare_attention(layout.on_host())


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    return F.embedding(token_ids, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.dtype == torch.float32:
        return F.linear(x, weight, bias)
    # For 16-bit types torch compiles, and keeps, a kernel of about 1 MB for every number of rows it meets: a server
    # under load grew by 70 MB a minute. Rows are padded to few sizes, at most an eighth more from 64 rows on.
    num_rows = x.shape[0]
    return F.linear(F.pad(x, (0, 0, 0, padded_rows(num_rows) - num_rows)), weight, bias)[:num_rows]


def logits(x: Tensor, weight: Tensor) -> Tensor:
    return linear(x, weight, None).float()


def gated_linear(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    return gate(linear(x, gate_up_weight, bias), activation)


def padded_rows(num_rows: int) -> int:
    """The size that `linear` computes `num_rows` rows at: all to 8, multiples of 8 to 64, then 8 sizes per octave."""
    if num_rows <= 8:
        return num_rows
    return round_up(num_rows, max(8, 1 << (num_rows.bit_length() - 4)))


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    # 12 / 33 / 1401 against 16 / 37 / 1427 for the formula spelled out. The weight is kept out of the call because
    # there it would be applied in float32, before the rounding.
    return F.rms_norm(x, (x.shape[-1],), None, eps).mul_(weight)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> None:
    x.copy_(rms_norm(x, weight, eps))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x.add_(residual)
    return rms_norm(total, weight, eps), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin_cache: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_cache.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D/2] each
    return _rotate(q, cos, sin), _rotate(k, cos, sin)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    # In float32 and rounded once: 23 / 59 / 3035, and nearer to the truth than in bfloat16 throughout (20 / 70 / 2400).
    first, second = x.float().chunk(2, dim=-1)
    rotated = torch.empty(x.shape, dtype=x.dtype)
    out_first, out_second = rotated.chunk(2, dim=-1)
    out_first.copy_(torch.addcmul(first * cos, second, sin, value=-1))
    out_second.copy_(torch.addcmul(second * cos, first, sin))
    return rotated


def rope_and_cache(
    qkv: Tensor,
    head_norm: HeadNorm | None,
    positions: Tensor,
    cos_sin_cache: Tensor,
    cache: LayerCache,
    slot_mapping: Tensor,
) -> Tensor:
    num_kv_heads = cache.num_kv_heads
    q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    if head_norm is not None:
        q = rms_norm(q, head_norm.q_weight, head_norm.eps)
        k = rms_norm(k, head_norm.k_weight, head_norm.eps)
    q, k = rope(q, k, positions, cos_sin_cache)
    write_kv(k, v, cache, slot_mapping)
    return q


def write_cache(kv: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    k, v = kv.chunk(2, dim=1)
    write_kv(k, v, cache, slot_mapping)


def write_kv(k: Tensor, v: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
    kept = slot_mapping >= 0
    if not bool(kept.all()):
        k, v, slot_mapping = k[kept], v[kept], slot_mapping[kept]
    if cache.key.dtype == torch.int8:
        k, v = int8_cache.quantize(k), int8_cache.quantize(v)
    elif cache.key.dtype == float8_cache.FLOAT8:
        k, v = float8_cache.quantize(k, cache.key_scales), float8_cache.quantize(v, cache.value_scales)
    for side, rows in ((cache.key, k), (cache.value, v)):
        slots = as_bytes(side).view(-1, *side.shape[2:])[..., : rows.shape[2]]
        slots.index_copy_(0, slot_mapping, as_bytes(rows))


def mutual_attention(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int], scores: MutualScores) -> Tensor:
    """On any device. Spans of one length that follow one another are computed together; with a bias each alone, so
    that its bits do not depend on others.
    """
    if scores.bias is not None:
        return _biased_attention(q, k, v, lens, scores, scores.bias)
    parts, first, reach = [], 0, scores.reach
    for length, group in itertools.groupby(lens):
        num_spans = len(list(group))
        end = first + num_spans * length
        queries, keys, values = (x[first:end].unflatten(0, (num_spans, length)).transpose(1, 2) for x in (q, k, v))
        mask = None
        if reach is not None and reach < length - 1:
            mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(reach).triu(-reach)
        is_grouped = q.shape[1] != k.shape[1]
        mixed = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=scores.scale, enable_gqa=is_grouped
        )
        parts.append(mixed.transpose(1, 2).flatten(0, 1))
        first = end
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _biased_attention(
    q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int], scores: MutualScores, bias: Tensor
) -> Tensor:
    out, first, reach = q.new_empty(q.shape), 0, scores.reach
    for length in lens:
        rows = slice(first, first + length)
        queries, keys, values = (x[rows].transpose(0, 1).contiguous() for x in (q, k, v))
        mask = bias[:, :length, :length].contiguous()
        if reach is not None:
            mask += torch.full_like(mask[0], -torch.inf).masked_fill_(
                torch.ones_like(mask[0], dtype=torch.bool).tril(reach).triu(-reach), 0.0
            )
        mixed = F.scaled_dot_product_attention(
            queries[None], keys[None], values[None], mask[None], scale=scores.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        out[rows] = mixed[0].transpose(0, 1)
        first += length
    return out


def copy_blocks(caches: list[LayerCache], pairs: BlockPairs) -> None:
    for batch in independent_batches(pairs):
        sources, destinations = torch.tensor(batch, dtype=torch.int64).unbind(dim=1)
        for side in (as_bytes(side) for cache in caches for side in cache.tensors):
            side.index_copy_(0, destinations, side.index_select(0, sources))


def swap_blocks(sources: list[LayerCache], destinations: list[LayerCache], pairs: BlockPairs) -> None:
    source_ids, destination_ids = torch.tensor(pairs, dtype=torch.int64).unbind(dim=1)
    for from_cache, to_cache in zip(sources, destinations, strict=True):
        for from_side, to_side in zip(from_cache.tensors, to_cache.tensors, strict=True):
            content = as_bytes(from_side).index_select(0, source_ids)
            as_bytes(to_side).index_copy_(0, destination_ids, content)
