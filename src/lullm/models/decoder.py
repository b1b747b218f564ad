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
from lullm.nn.context import StepContext
from lullm.nn.embedding import Embedding, LMHead
from lullm.nn.mlp import GatedMLP
from lullm.nn.norm import RMSNorm
from lullm.nn.rotary import Rotary
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

    def __init__(self, config: ModelConfig, style: DecoderStyle, layer: int, dtype: torch.dtype):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer, 0, style.qk_norm, style.qkv_bias, style.o_bias, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = GatedMLP(config.hidden_size, config.intermediate_size, style.mlp_bias, dtype)

    def forward(
        self,
        hidden: Tensor,  # [T, H]: the previous layer's contribution
        residual: Tensor | None,  # [T, H]: everything before that; None in the first layer
        cos_sin_cache: Tensor,
        context: StepContext,
    ) -> tuple[Tensor, Tensor]:
        ops = context.ops
        if residual is None:
            hidden, residual = self.input_layernorm(hidden, ops), hidden
        else:
            hidden, residual = self.input_layernorm.add(hidden, residual, ops)
        hidden = self.self_attn(hidden, cos_sin_cache, context)
        hidden, residual = self.post_attention_layernorm.add(hidden, residual, ops)
        return self.mlp(hidden, ops), residual


class Decoder(nn.Module):
    """Token ids to the hidden states that the head reads."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype)
        self.layers = nn.ModuleList(DecoderLayer(config, style, i, dtype) for i in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.rotary = Rotary(config, max_model_len)

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        hidden, residual = context.input_embeddings, None
        if hidden is None:
            hidden = self.embed_tokens(token_ids, context.ops)
        for layer in self.layers:
            hidden, residual = layer(hidden, residual, self.rotary.cos_sin_cache, context)
        hidden, _ = self.norm.add(hidden, residual, context.ops)
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

    def forward(self, token_ids: Tensor, context: StepContext) -> Tensor:
        """See `models.protocol.Model`."""
        hidden: Tensor = self.model(token_ids, context)
        return hidden

    def compute_logits(self, hidden: Tensor, ops: Ops) -> Tensor:
        """See `models.protocol.Model`."""
        return self.lm_head(hidden, self.model.embed_tokens, ops)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Replace some weights, under the checkpoint's names; those that were replaced. See `WeightStore.update`."""
        if self.update_weights is None:
            raise ModelLoadError("the model has no memory for weights yet")
        return set(self.update_weights(weights))
