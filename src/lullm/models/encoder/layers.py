"""The layers of an encoder: every row of an input sees all of them."""

import torch
from torch import Tensor, nn

from lullm.config.layer.encoder import EncoderConfig
from lullm.models.vision.parts import dense
from lullm.nn.norm import LayerNorm
from lullm.ops.attention_layout import MutualScores
from lullm.ops.table import Ops


class EncoderAttention(nn.Module):
    """Self-attention without a mask."""

    def __init__(self, config: EncoderConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.num_heads = config.num_attention_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (dense(size, size, True, dtype) for _ in range(4))

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, H] -> [R, H]
        projected: list[Tensor] = [project(x, ops) for project in (self.q_proj, self.k_proj, self.v_proj)]
        query, key, value = (rows.unflatten(-1, (self.num_heads, -1)) for rows in projected)
        mixed = ops.mutual_attention(query, key, value, [len(x)], MutualScores(query.shape[-1] ** -0.5))
        out: Tensor = self.out_proj(mixed.flatten(1), ops)
        return out


class EncoderLayer(nn.Module):
    """Norms come before attention and MLP, or behind the sums."""

    def __init__(self, config: EncoderConfig, size: int, dtype: torch.dtype):
        super().__init__()
        self.norms_first, self.activation = config.norms_first, config.activation
        self.self_attn = EncoderAttention(config, size, dtype)
        self.self_attn_layer_norm = LayerNorm(size, config.layer_norm_eps, dtype)
        self.fc1 = dense(size, config.intermediate_size, True, dtype)
        self.fc2 = dense(config.intermediate_size, size, True, dtype)
        self.final_layer_norm = LayerNorm(size, config.layer_norm_eps, dtype)

    def forward(self, x: Tensor, ops: Ops) -> Tensor:  # [R, H] -> [R, H]
        """Overwrites `x`."""
        ops.add_(x, self.self_attn(self.self_attn_layer_norm(x, ops) if self.norms_first else x, ops))
        if not self.norms_first:
            x = self.self_attn_layer_norm(x, ops)
        inner = self.fc1(self.final_layer_norm(x, ops) if self.norms_first else x, ops)
        ops.add_(x, self.fc2(ops.activate(inner, self.activation), ops))
        return x if self.norms_first else self.final_layer_norm(x, ops)
