"""The golden ops: the definition of the table in the plainest torch, one sequence at a time, float32 inside.

Fast versions are tested against these.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lullm.ops.attention_layout import AttentionLayout, CausalScores, MutualScores
from lullm.ops.cache import float8_cache, int8_cache
from lullm.ops.cache.layer_cache import HeadNorm, LayerCache
from lullm.ops.cache.reading import read_kv
from lullm.ops.device_layout import DeviceLayout
from lullm.types.arithmetic import Activation
from lullm.types.layer_kind import first_seen


def embedding(token_ids: Tensor, weight: Tensor) -> Tensor:
    return weight[token_ids]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _product(x, weight, bias).to(x.dtype)


def logits(x: Tensor, weight: Tensor) -> Tensor:
    return _product(x, weight, None)


def gated_linear(x: Tensor, gate_up_weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    gates, ups = _product(x, gate_up_weight, bias).chunk(2, dim=-1)
    return (activate(gates, activation) * ups).to(x.dtype)


def gate(gate_up: Tensor, activation: Activation) -> Tensor:
    gates, ups = gate_up.float().chunk(2, dim=-1)
    return (activate(gates, activation) * ups).to(gate_up.dtype)


def activate(x: Tensor, activation: Activation) -> Tensor:
    x32 = x.float()
    if activation == "silu":
        y = x32 / (1 + torch.exp(-x32))
    elif activation == "relu2":
        y = x32.clamp_min(0) ** 2
    elif activation == "relu":
        y = x32.clamp_min(0)
    elif activation == "gelu":
        y = x32 * 0.5 * (1 + torch.erf(x32 * 2**-0.5))
    else:
        y = x32 * 0.5 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (x32 + 0.044715 * x32**3)))
    return y.to(x.dtype)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y = x.float() @ weight.float().T
    return y if bias is None else y + bias.float()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x32 = x.float()
    normed = x32 * torch.rsqrt(x32.pow(2).mean(-1, keepdim=True) + eps)
    return weight * normed.to(x.dtype)


def rms_norm_(x: Tensor, weight: Tensor, eps: float) -> None:
    x.copy_(rms_norm(x, weight, eps))


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    x32 = x.float()
    centred = x32 - x32.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight.float()
    return (normed if bias is None else normed + bias.float()).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, weight, eps), total


def add_(total: Tensor, x: Tensor) -> None:
    total.copy_(total.float() + x.float())


def scale_(x: Tensor, factor: float) -> None:
    x.copy_(x.float() * factor)


def soft_cap_(x: Tensor, cap: float) -> None:
    x.copy_(cap * torch.tanh(x.float() / cap))


def rope(q: Tensor, k: Tensor, positions: Tensor, cos_sin_cache: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = cos_sin_cache[positions].unsqueeze(1).chunk(2, dim=-1)  # [T, 1, D/2] each

    def rotate(x: Tensor) -> Tensor:
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

    return rotate(q), rotate(k)


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
    if cache.key.dtype == torch.int8:
        k, v = int8_cache.quantize(k), int8_cache.quantize(v)
    elif cache.key.dtype == float8_cache.FLOAT8:
        k, v = float8_cache.quantize(k, cache.key_scales), float8_cache.quantize(v, cache.value_scales)
    for row, slot in enumerate(slot_mapping.tolist()):
        if slot < 0:
            continue
        place = slot // cache.block_size, slot % cache.block_size
        cache.key[place][:, : k.shape[2]] = k[row]
        cache.value[place][:, : v.shape[2]] = v[row]


def prepare_attention(layout: DeviceLayout) -> AttentionLayout:
    return layout.on_host()


def attention(q: Tensor, cache: LayerCache, prepared: AttentionLayout, scores: CausalScores) -> Tensor:
    group_size = q.shape[1] // cache.num_kv_heads
    outputs = []
    row = 0
    spans = zip(prepared.query_lens, prepared.context_lens, prepared.first_keys, strict=True)
    for span, (query_len, context_len, first_key) in enumerate(spans):
        positions = torch.arange(first_key, context_len)
        block_ids = prepared.block_tables[span, positions // prepared.block_size]
        offsets = positions % prepared.block_size
        # A key/value head serves `group_size` consecutive query heads.
        keys, values = (
            read_kv(side[block_ids, offsets], q.shape[2], scales).repeat_interleave(group_size, dim=1)
            for side, scales in ((cache.key, cache.key_scales), (cache.value, cache.value_scales))
        )  # [L, Hq, D] each
        queries = q[row : row + query_len].float()  # [Q, Hq, D]
        products = torch.einsum("qhd,lhd->hql", queries, keys) * scores.scale
        if scores.soft_cap is not None:
            products = scores.soft_cap * torch.tanh(products / scores.soft_cap)
        query_positions = torch.arange(context_len - query_len, context_len)[:, None]
        products.masked_fill_(positions > query_positions, float("-inf"))
        if prepared.window is not None:
            firsts = [first_seen(int(position), prepared.window, prepared.is_chunked) for position in query_positions]
            products.masked_fill_(positions < torch.tensor(firsts)[:, None], float("-inf"))
        if scores.sinks is not None:  # one key more, with the value 0
            column = scores.sinks.float()[:, None, None].expand(-1, query_len, 1)
            products = torch.cat((products, column), dim=-1)
        shares = products.softmax(dim=-1)[..., : len(positions)]
        outputs.append(torch.einsum("hql,lhd->qhd", shares, values))
        row += query_len
    return torch.cat(outputs).to(q.dtype)


def mutual_attention(q: Tensor, k: Tensor, v: Tensor, lens: Sequence[int], scores: MutualScores) -> Tensor:
    parts, first = [], 0
    for length in lens:
        queries, keys, values = (x[first : first + length].float() for x in (q, k, v))
        keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (keys, values))
        found = torch.einsum("qhd,khd->hqk", queries, keys) * scores.scale
        places = torch.arange(length)
        if scores.bias is not None:
            found += scores.bias[:, :length, :length]
        if scores.reach is not None:
            found.masked_fill_((places[:, None] - places).abs() > scores.reach, -math.inf)
        parts.append(torch.einsum("hqk,khd->qhd", torch.softmax(found, dim=-1), values))
        first += length
    return torch.cat(parts).to(q.dtype)


def copy_blocks(caches: list[LayerCache], pairs: list[tuple[int, int]]) -> None:
    for side in (side for cache in caches for side in cache.tensors):
        for source, destination in pairs:
            side[destination] = side[source]


def swap_blocks(sources: list[LayerCache], destinations: list[LayerCache], pairs: list[tuple[int, int]]) -> None:
    for from_cache, to_cache in zip(sources, destinations, strict=True):
        for from_side, to_side in zip(from_cache.tensors, to_cache.tensors, strict=True):
            for source, destination in pairs:
                to_side[destination] = from_side[source]
