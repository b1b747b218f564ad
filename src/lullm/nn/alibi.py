"""Attention with linear biases (ALiBi, https://arxiv.org/abs/2108.12409): a score loses with a key's distance, by head.

A softmax does not change if a row of scores is shifted, so a head may add its slope times the key's position instead of
taking off its slope times the distance. That is a product, too: of two elements behind each key, the high and the low
part of its position, with two behind each query, the slope. So every attention kernel computes it, over heads that are
up to 16 elements wider in the cache. Two numbers of bfloat16 hold positions up to 65,536 exactly. Torch writes them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lullm.config.model import ModelConfig
from lullm.nn.attention import AttentionStyle
from lullm.nn.context import StepContext
from lullm.nn.linear import FusedLinear, Linear

_LOW = 256
"""Positions below it are the low part: bfloat16 has 8 bits."""


class AlibiAttention(nn.Module):
    """Project, write keys with their positions and values to the cache, attend over the cache, project back.

    Args:
        layer: the number of the layer in the model. group: the number of its KV cache group.
    """

    slopes: Tensor

    def __init__(self, config: ModelConfig, style: AttentionStyle, layer: int, group: int, dtype: torch.dtype):
        super().__init__()
        self.style, self.layer, self.group = style, layer, group
        heads = config.kv_heads(layer)
        self.head_dim, self.num_added = config.head_dim, heads.head_dim - config.head_dim
        self.num_heads, self.num_kv_heads = config.num_attention_heads, heads.num_heads
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        self.qkv_proj = FusedLinear(config.hidden_size, (q_size, kv_size, kv_size), style.qkv_bias, dtype)
        self.o_proj = Linear(q_size, config.hidden_size, style.o_bias, dtype)
        share, all_slopes = config.share, config.family.alibi_slopes
        first = 0 if share is None else share.first(self.num_heads, len(all_slopes))
        slopes = torch.tensor(all_slopes[first : first + self.num_heads], device="cpu") / style.scale
        parts = torch.stack((slopes * _LOW, slopes), dim=-1).to(dtype)  # [Hq, 2]
        self.register_buffer("slopes", parts, persistent=False)

    def forward(
        self,
        x: Tensor,  # [T, H]
        cos_sin_cache: Tensor,
        context: StepContext,
    ) -> Tensor:  # [T, H]
        """The rotary table is for others."""
        ops, attention, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        qkv = self.qkv_proj(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        wide = F.pad(qkv, (0, self.num_added))
        q, k, _ = wide.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), dim=1)
        added = slice(self.head_dim, self.head_dim + 2)
        q[..., added] = self.slopes
        places = context.positions
        k[..., added] = torch.stack((places // _LOW, places % _LOW), dim=-1).to(k.dtype).unsqueeze(1)
        ops.write_cache(wide[:, self.num_heads :], cache, attention.slot_mapping)
        out = ops.attention(q.contiguous(), cache, attention, self.style.scale)[..., : self.head_dim]
        return self.o_proj(out.flatten(1), ops)
