"""Attention with linear biases (ALiBi, https://arxiv.org/abs/2108.12409): a score falls with the key's distance, by a
slope per head.

A softmax does not change if a row of scores is shifted. So a head may add its slope times the key's position instead of
subtracting its slope times the distance. That sum is a product, too: two elements after each key (the high and the low
part of its position) times two after each query (the slope). So every attention kernel computes it, over heads that are
up to 16 elements wider in the cache. Two numbers of bfloat16 hold positions up to 65,536 exactly. A small matrix
computes these elements for all heads of a row from its position, so no other ops are needed.
"""

import functools

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.nn.attention import AttentionStyle
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear
from lullm.ops.attention_layout import CausalScores

_LOW = 256
"""Positions below it are the low part: bfloat16 has 8 bits."""


@functools.cache
def _places(dtype: torch.dtype) -> Tensor:  # [65,536, 2]
    """The two parts of every position."""
    positions = torch.arange(_LOW * _LOW, device="cpu")
    return torch.stack((positions // _LOW, positions % _LOW), dim=-1).to(dtype)


class AlibiAttention(nn.Module):
    """Project, write keys with their positions and values to the cache, attend over the cache, project back.

    Args:
        layer: the number of the layer in the model. group: the number of its KV cache group.
    """

    places: Tensor
    adding: Tensor
    added: Tensor

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        self.layer, self.group, self.scores = layer, group, CausalScores(style.scores.scale)
        heads = config.kv_heads(layer)
        self.head_dim, self.num_added = config.head_dim, heads.head_dim - config.head_dim
        num_heads, num_kv_heads = config.num_attention_heads, heads.num_heads
        q_size, kv_size = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.qkv_proj = FusedLinear(config.hidden_size, (q_size, kv_size, kv_size), style.qkv_bias, dtype)
        self.o_proj = Linear(q_size, config.hidden_size, style.o_bias, dtype)
        share, all_slopes = config.share, config.family.alibi_slopes
        first = 0 if share is None else share.first(num_heads, len(all_slopes))
        slopes = torch.tensor(all_slopes[first : first + num_heads], device="cpu") / style.scores.scale
        added = torch.zeros(num_heads + 2 * num_kv_heads, self.num_added, device="cpu")
        adding = torch.zeros(*added.shape, 2, device="cpu")
        added[:num_heads, 0], added[:num_heads, 1] = _LOW * slopes, slopes
        adding[num_heads : num_heads + num_kv_heads, (0, 1), (0, 1)] = 1.0
        self.register_buffer("places", _places(dtype), persistent=False)
        self.register_buffer("adding", adding.flatten(0, 1).to(dtype), persistent=False)
        self.register_buffer("added", added.flatten().to(dtype), persistent=False)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, attention, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        added = ops.linear(ops.embedding(context.positions, self.places), self.adding, self.added)
        qkv = self.qkv_proj(x, ops).reshape(-1, self.head_dim)  # [T * (Hq + 2 * Hkv), D]
        wide = ops.join(qkv, added.reshape(-1, self.num_added)).unflatten(0, (len(x), -1))
        unturned = context.rotary[self.layer]  # [max_len, D + added]
        q = ops.rope_and_cache(wide, None, context.positions, unturned, cache, attention.slot_mapping)
        out = ops.attention(q, cache, attention, self.scores).flatten(0, 1)[:, : self.head_dim]
        out = ops.join(out, out[:, :0])  # the same in one piece
        return self.o_proj(out.view(len(x), -1), ops)
