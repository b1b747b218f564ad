"""Attention over latent vectors (MLA, https://arxiv.org/abs/2405.04434): one vector per token serves all heads.

The cache holds the latent vector and the rotated part of the key once per token, as the key of one head; its first
elements are also the value. The matrices that would expand it to keys and values are instead multiplied with the
queries and the results ("absorbed"): `q . (W l) = (W^T q) . l`. So a decode step reads `rank + rope_size` elements per
token. Scores take `(rank + rope_size) / (plain_size + rope_size)` times the products (3 of DeepSeek's) of expanded
heads, so `Ops.attend_latents` may expand the context of a span of many rows.
"""

import torch
from torch import Tensor, nn

from lullm.config.decoder import LatentConfig
from lullm.config.model import ModelConfig
from lullm.nn.context import StepContext
from lullm.nn.linear import Linear, meta_parameter
from lullm.nn.norm import RMSNorm
from lullm.ops.attention_layout import CausalScores
from lullm.ops.head_products import LatentMatrices, absorbed_over

LATENT_EPS = 1e-6
"""eps of the norms on latent vectors; configs lack it."""


class HeadMatrices(nn.Module):
    """Each head's matrices that make keys and values of a latent; never quantized."""

    def __init__(self, num_heads: int, sizes: LatentConfig, dtype: torch.dtype):
        super().__init__()
        self.num_heads = num_heads
        self.sizes = sizes
        self.weight = meta_parameter((num_heads * (sizes.plain_size + sizes.value_size), sizes.rank), dtype)

    @property
    def parts(self) -> LatentMatrices:
        sizes = self.sizes
        whole = self.weight.view(self.num_heads, -1, sizes.rank)
        return LatentMatrices(*whole.split((sizes.plain_size, sizes.value_size), dim=1))


class LatentAttention(nn.Module):
    """Project, norm and rotate; write the latent vector; attend over latents; project back.

    Args:
        scale: factor on the products of queries and keys.
        bias: the projections into latent vectors, and the one of the output, have a bias.
        layer: the number of the layer in the model. group: the number of its KV cache group.
        query_factors: as of `AttentionStyle`.
    """

    query_factors: Tensor | None

    def __init__(
        self,
        config: ModelConfig,
        bias: bool,
        layer: int,
        group: int,
        dtype: torch.dtype,
        query_factors: Tensor | None = None,
    ):
        super().__init__()
        self.register_buffer("query_factors", query_factors, persistent=False)
        sizes, heads = config.family.latent, config.num_attention_heads
        assert sizes is not None, "of a family with latents"
        self.sizes, self.num_heads = sizes, heads
        self.scores = CausalScores(config.family.attention_scale)
        self.layer, self.group = layer, group
        self.q_proj = self.q_a_proj = self.q_b_proj = None
        if sizes.query_rank is None:
            self.q_proj = Linear(config.hidden_size, heads * sizes.query_size, False, dtype)
        else:
            self.q_a_proj = Linear(config.hidden_size, sizes.query_rank, bias, dtype)
            self.q_a_layernorm = RMSNorm(sizes.query_rank, LATENT_EPS, dtype)
            self.q_b_proj = Linear(sizes.query_rank, heads * sizes.query_size, False, dtype)
        self.kv_a_proj_with_mqa = Linear(config.hidden_size, sizes.cached_size, bias, dtype)
        self.kv_a_layernorm = RMSNorm(sizes.rank, LATENT_EPS, dtype)
        self.kv_b_proj = HeadMatrices(heads, sizes, dtype)
        self.o_proj = Linear(heads * sizes.value_size, config.hidden_size, bias, dtype)

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, H]
        ops, prepared, cache = context.ops, context.attention[self.group], context.caches[self.layer]
        sizes, cos_sin_cache = self.sizes, context.rotary[self.layer]  # [max_len, rope_size]
        row = self.kv_a_proj_with_mqa(x, ops)  # [T, D]: the latent, and the part of the key that turns
        self.kv_a_layernorm.norm_(row[:, : sizes.rank], ops)
        ops.rotate_(row[:, sizes.rank :].unsqueeze(1), None, context.positions, cos_sin_cache)
        ops.write_cache(row.unsqueeze(1).expand(-1, 2, -1), cache, prepared.slot_mapping)
        q = self._queries(x, context).unflatten(-1, (self.num_heads, sizes.query_size))  # [T, Hq, query_size]
        ops.rotate_(q[..., sizes.plain_size :], None, context.positions, cos_sin_cache)
        if self.query_factors is not None:
            ops.multiply_(q.view(len(q), -1), ops.embedding(context.positions, self.query_factors), None)
        attend = ops.attend_latents or absorbed_over(ops.multiply_heads, ops.attention)
        out = attend(q, self.kv_b_proj.parts, cache, prepared, self.scores)  # [T, Hq, value_size]
        return self.o_proj(out.flatten(1), ops)

    def _queries(self, x: Tensor, context: StepContext) -> Tensor:  # [T, H] -> [T, Hq * query_size]
        ops = context.ops
        if self.q_proj is not None:
            return self.q_proj(x, ops)
        assert self.q_a_proj is not None and self.q_b_proj is not None
        return self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x, ops), ops), ops)
