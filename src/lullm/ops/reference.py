"""The golden ops: the meaning of the table in the plainest torch, one sequence at a time, float32 inside.

Fast versions are tested against these.
"""

import torch
from torch import Tensor

from lullm.ops import float8_cache, int8_cache
from lullm.ops.attention_layout import AttentionLayout, KVCache
from lullm.ops.device_layout import DeviceLayout


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    return weight[token_ids]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias).to(x.dtype)


def logits(x: Tensor, weight: Tensor) -> Tensor:
    return _product(x, weight, None)


def linear_silu_mul(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None) -> Tensor:
    return silu_mul(_product(x, gate_up_weight, bias)).to(x.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.float() @ weight.float().T
    return y if bias is None else y + bias.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin_cache: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D/2] each

    def rotate(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


def rope_and_cache(
    qkv: Tensor,
    q_norm_weight: Tensor | None,
    k_norm_weight: Tensor | None,
    eps: float,
    positions: Tensor,
    cos_sin_cache: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    num_kv_heads = key_cache.shape[2]
    q, k, v = qkv.split([qkv.shape[1] - 2 * num_kv_heads, num_kv_heads, num_kv_heads], dim=1)
    if q_norm_weight is not None:
        q = rms_norm(q, q_norm_weight, eps)
    if k_norm_weight is not None:
        k = rms_norm(k, k_norm_weight, eps)
    q, k = rope(q, k, positions, cos_sin_cache)
    write_kv(k, v, key_cache, value_cache, slot_mapping, key_scales, value_scales)
    return q


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (gate / (1 + torch.exp(-gate)) * up).to(gate_up.dtype)


def write_kv(
    k: Tensor,
    v: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> None:
    block_size = key_cache.shape[1]
    if key_cache.dtype == torch.int8:
        k, v = int8_cache.quantize(k), int8_cache.quantize(v)
    elif key_cache.dtype == float8_cache.FLOAT8:
        k, v = float8_cache.quantize(k, key_scales), float8_cache.quantize(v, value_scales)
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        key_cache[slot // block_size, slot % block_size] = k[row]
        value_cache[slot // block_size, slot % block_size] = v[row]


def _read_kv(rows: Tensor, scales: Tensor | None) -> Tensor:
    if rows.dtype == torch.int8:
        return int8_cache.dequantize(rows, torch.float32)
    if rows.dtype == float8_cache.FLOAT8:
        return rows.float() if scales is None else rows.float() * scales[:, None]
    return rows.float()


def prepare_attention(layout: DeviceLayout) -> AttentionLayout:
    return layout.on_host()


def attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    prepared: AttentionLayout,
    scale: float,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
) -> Tensor:
    group_size = q.shape[1] // key_cache.shape[2]
    outputs = []
    row = 0
    spans = zip(prepared.query_lens, prepared.context_lens, prepared.first_keys, strict=True)
    for span, (query_len, context_len, first_key) in enumerate(spans):
        positions = torch.arange(first_key, context_len)
        block_ids = prepared.block_tables[span, positions // prepared.block_size]
        offsets = positions % prepared.block_size
        # A key/value head serves `group_size` consecutive query heads.
        keys, values = (
            _read_kv(cache[block_ids, offsets], scales).repeat_interleave(group_size, dim=1)
            for cache, scales in ((key_cache, key_scales), (value_cache, value_scales))
        )  # [L, Hq, D] each
        queries = q[row : row + query_len].float()  # [Q, Hq, D]
        scores = torch.einsum("qhd,lhd->hql", queries, keys) * scale
        query_positions = torch.arange(context_len - query_len, context_len)[:, None]
        scores.masked_fill_(positions > query_positions, float("-inf"))
        if prepared.window is not None:
            scores.masked_fill_(positions <= query_positions - prepared.window, float("-inf"))
        outputs.append(torch.einsum("hql,lhd->qhd", scores.softmax(dim=-1), values))
        row += query_len
    return torch.cat(outputs).to(q.dtype)


def copy_blocks(kv_caches: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    for key_cache, value_cache in kv_caches:
        for source, destination in pairs:
            key_cache[destination] = key_cache[source]
            value_cache[destination] = value_cache[source]


def swap_blocks(sources: list[KVCache], destinations: list[KVCache], pairs: list[tuple[int, int]]) -> None:
    for source_layer, destination_layer in zip(sources, destinations, strict=True):
        for source_cache, destination_cache in zip(source_layer, destination_layer, strict=True):
            for source, destination in pairs:
                destination_cache[destination] = source_cache[source]
