"""What a cache holds, in float32, whatever its format; and how much its keys are attended to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.layer_cache import LayerCache


def read_kv(rows: Tensor, head_size: int, scales: Tensor | None) -> Tensor:
    """The values `[..., Hkv, D]` of rows of keys or values. `scales`: of an fp8 cache, see `LayerCache`."""
    if rows.dtype == torch.int8:
        return int8_cache.dequantize(rows, torch.float32, head_size)
    rows = rows[..., :head_size]
    if rows.dtype == float8_cache.FLOAT8:
        return rows.float() if scales is None else rows.float() * scales[:, None]
    return rows.float()


def attention_weights(q: Tensor, cache: LayerCache, slots: Tensor, scale: float, heads: Sequence[int]) -> Tensor:
    """What each row of `q [T, Hq, D]` attends to in `slots [R]`, all of which it sees: `[T, heads, R]` float32."""
    group_size = q.shape[1] // cache.num_kv_heads
    rows = cache.by_slot().key[slots, 0]  # [R, Hkv, row]
    keys = read_kv(rows, q.shape[2], cache.key_scales)[:, [head // group_size for head in heads]]
    scores = torch.einsum("qhd,rhd->qhr", q[:, list(heads)].float(), keys)
    return scores.mul_(scale).softmax(dim=-1)
