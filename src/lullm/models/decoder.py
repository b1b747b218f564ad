"""The decoder that the families share: embedding, layers of attention and MLP, final norm, head.

A family differs in its `DecoderStyle`. Parameters carry the names of a Llama checkpoint, but for the fused ones, and
stand on the meta device until `weights.materialize` gives them memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lullm.config.model import ModelConfig
from lullm.errors import ModelLoadError
from lullm.nn.attention import Attention
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.mlp import GatedMLP
from lullm.nn.norm import RMSNorm
from lullm.nn.rotary import Rotary
from lullm.ops.attention_layout import KVCache, PreparedAttention
from lullm.ops.table import Ops
from lullm.weights.rule import WeightRules


@dataclass(frozen=True, slots=True)
class DecoderStyle:
    """What a family does its own way. `qk_norm`: RMSNorm on every query and key head before the rotation."""

    rules: WeightRules
    qk_norm: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False


class DecoderLayer(nn.Module):
    """One layer, norms first. The residual stream travels beside the hidden states, so that adding and norming fuse."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, style.qk_norm, style.qkv_bias, style.o_bias, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, style.mlp_bias, dtype)

    def forward(
        self,
        hidden: Tensor,  # [T, H]: the previous layer's contribution
        residual: Tensor | None,  # [T, H]: everything before that; None in the first layer
        positions: Tensor,
        cos_sin_cache: Tensor,
        kv_cache: KVCache,
        attention: PreparedAttention,
        ops: Ops,
    ) -> tuple[Tensor, Tensor]:
        if residual is None:
            hidden, residual = self.input_layernorm(hidden, ops), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual, ops)
        hidden = self.self_attn(hidden, positions, cos_sin_cache, kv_cache, attention, ops)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual, ops)
        return self.mlp(hidden, ops), residual


class Decoder(nn.Module):
    """Token ids to the hidden states that the head reads."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, style, dtype) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.rotary = Rotary(config, max_model_len)

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        kv_caches: list[KVCache],
        attention: PreparedAttention,
        ops: Ops,
    ) -> Tensor:
        hidden, residual = self.embed_tokens(token_ids, ops), None
        cos_sin_cache = self.rotary.cos_sin_cache
        for layer, kv_cache in zip(self.layers, kv_caches, strict=True):
            hidden, residual = layer(hidden, residual, positions, cos_sin_cache, kv_cache, attention, ops)
        hidden, _ = self.norm.add(hidden, residual, ops)
        return hidden


class CausalLM(nn.Module):
    """A decoder with its language-model head; what `models.registry.build_model` returns.

    `rules` say how a checkpoint's names become its parameters. All calls are made under `torch.inference_mode()`.
    """

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        self.config = config
        self.rules = style.rules
        self.update_weights: Callable[[Iterable[tuple[str, Tensor]]], list[str]] | None = None  # once there is memory
        self.model = Decoder(config, style, dtype, max_model_len)
        self.lm_head = LMHead(config.vocab_size, config.hidden_size, config.tie_word_embeddings, dtype)

    def forward(
        self,
        token_ids: Tensor,  # [T] int64
        positions: Tensor,  # [T] int64, each below max_model_len
        kv_caches: list[KVCache],  # one per layer
        attention: PreparedAttention,  # of the same ops
        ops: Ops,
    ) -> Tensor:
        """The hidden states `[T, H]` of one step; its keys and values are written into the caches."""
        return self.model(token_ids, positions, kv_caches, attention, ops)

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """Logits `[N, V]` float32 of the rows `hidden [N, H]` that are to be sampled from."""
        return self.lm_head(hidden, self.model.embed_tokens, ops)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Replace some weights, under the checkpoint's names; those that were replaced. See `WeightStore.update`."""
        if self.update_weights is None:
            raise ModelLoadError("the model has no memory for weights yet")
        return set(self.update_weights(weights))
