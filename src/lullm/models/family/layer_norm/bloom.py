"""BLOOM (https://arxiv.org/abs/2211.05100): scores fall with distance (`nn.alibi`), a norm follows the embedding."""

from dataclasses import replace

import torch
from torch import Tensor

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, Decoder, DecoderStyle, plain_mlp, rules_of
from lullm.models.family.layer_norm.falcon import RENAMES, of_each_group
from lullm.models.family.layer_norm.parallel import layer_norm, renames
from lullm.nn.context import StepContext

EMBED_NORM = renames((r"^(transformer\.)?word_embeddings_layernorm\.", "model.embed_norm."))


class BloomDecoder(Decoder):
    """With a norm behind the embedding."""

    def __init__(self, config: ModelConfig, style: DecoderStyle, dtype: torch.dtype, max_model_len: int):
        super().__init__(config, style, dtype, max_model_len)
        if self.stage.is_first:
            self.embed_norm = layer_norm(config, dtype)

    def embed(self, token_ids: Tensor, context: StepContext) -> Tensor:
        hidden = super().embed(token_ids, context)
        return self.embed_norm(hidden, context.ops) if self.stage.is_first else hidden


def build_bloom(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config)
    rules = replace(
        rules,
        renames=(*EMBED_NORM, *RENAMES, *rules.renames),
        fusions=(),
        head_orders=(of_each_group(config),),
    )
    style = DecoderStyle(
        rules, qkv_bias=True, o_bias=True, make_norm=layer_norm, make_mlp=plain_mlp, make_decoder=BloomDecoder
    )
    return CausalLM(config, style, dtype, max_model_len)
