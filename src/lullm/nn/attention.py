"""Self-attention with grouped key/value heads over the paged cache (https://arxiv.org/abs/2305.13245)."""

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.nn.linear import FusedLinear, Linear
from lullm.nn.norm import RMSNorm
from lullm.ops.attention_layout import KVCache, PreparedAttention
from lullm.ops.table import Ops


class Attention(nn.Module):
    """Project, (norm), rotate, write the new keys and values to the cache, attend over the cache, project back."""

    def __init__(self, config: ModelConfig, qk_norm: bool, qkv_bias: bool, o_bias: bool, dtype: torch.dtype):
        super().__init__()
        self.head_dim = config.head_dim
        self.scale = config.head_dim**-0.5
        q_size = config.num_attention_heads * config.head_dim
        kv_size = config.num_key_value_heads * config.head_dim
        self.qkv_proj = FusedLinear(config.hidden_size, (q_size, kv_size, kv_size), qkv_bias, dtype)
        self.o_proj = Linear(q_size, config.hidden_size, o_bias, dtype)
        self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype) if qk_norm else None
        self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype) if qk_norm else None

    def forward(
        self,
        x: Tensor,  # [T, H]
        positions: Tensor,  # [T]
        cos_sin_cache: Tensor,  # [max_len, D]
        kv_cache: KVCache,
        attention: PreparedAttention,
        ops: Ops,
    ) -> Tensor:  # [T, H]
        qkv = self.qkv_proj(x, ops).unflatten(-1, (-1, self.head_dim))  # [T, Hq + 2 * Hkv, D]
        q, k, v = qkv.split([size // self.head_dim for size in self.qkv_proj.part_sizes], dim=1)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q, ops), self.k_norm(k, ops)
        q, k = ops.rope(q, k, positions, cos_sin_cache)
        key_cache, value_cache = kv_cache
        ops.write_kv(k, v, key_cache, value_cache, attention.slot_mapping)
        out = ops.attention(q, key_cache, value_cache, attention, self.scale)  # [T, Hq, D]
        return self.o_proj(out.flatten(1), ops)
