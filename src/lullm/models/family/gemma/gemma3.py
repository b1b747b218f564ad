"""Gemma (https://arxiv.org/abs/2403.08295), Gemma 2 (https://arxiv.org/abs/2408.00118) and Gemma 3, text (https://arxiv.org/abs/2503.19786).

Some layers have a window, the others full attention: one of two, or five of six. Attention and MLP are normed before
and after. The embedding is scaled by the root of its size. Gemma 2 caps scores and logits. Gemma 3 norms query and key
heads instead, and rotates by another base frequency in layers with a window.
"""

import re
from dataclasses import replace

from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, LayerSpec, new_norm
from lullm.models.rules import rules_of
from lullm.nn.context import StepContext
from lullm.weights.rule import Offset, renames

PLUS_ONE = Offset(re.compile(r"^(?!vision\.tower\.).*norm\.weight$"), 1.0)
"""A checkpoint holds w where the norms multiply by 1 + w.

The 1 is added while weights are read, so that the norms of all families, and their fast versions, are the same
function. In float32 nothing else changes. In bfloat16 1 + w is rounded once, like a result of a norm.
"""


class GemmaLayer(DecoderLayer):
    """One layer with norms on both sides of attention and MLP, under the checkpoint's names."""

    def __init__(self, spec: LayerSpec):
        super().__init__(spec)
        self.pre_feedforward_layernorm = new_norm(spec.config, spec.dtype)
        self.post_feedforward_layernorm = new_norm(spec.config, spec.dtype)

    def forward(self, hidden: Tensor, residual: Tensor | None, context: StepContext) -> tuple[Tensor, Tensor | None]:
        """See `DecoderLayer.forward`."""
        ops = context.ops
        hidden, residual = self.norm_input(hidden, residual, ops)
        hidden = self.mix(hidden, context)
        hidden = self.post_attention_layernorm(hidden, ops)
        hidden, residual = self.pre_feedforward_layernorm.add(hidden, residual, ops)
        hidden = self.feed(hidden, ops)
        return self.post_feedforward_layernorm(hidden, ops), residual


def gemma_style(config: ModelConfig) -> DecoderStyle:
    return replace(gemma2_style(config), make_layer=None)  # Llama's order of norms


def vault_gemma_style(config: ModelConfig) -> DecoderStyle:
    """Gemma 2 in Llama's order of norms, under Gemma's names (https://arxiv.org/abs/2510.15001)."""
    style = gemma2_style(config)
    norm = renames((r"\.pre_feedforward_layernorm\.", ".post_attention_layernorm."))
    return replace(style, rules=style.rules.plus(renames=norm), make_layer=None)


def gemma2_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config).plus(offsets=(PLUS_ONE,)), make_layer=GemmaLayer)


def gemma3_style(config: ModelConfig) -> DecoderStyle:
    return replace(gemma2_style(config), qk_norm="heads")
