"""Llama 1 to 3 (https://arxiv.org/abs/2407.21783) and the many checkpoints that share its architecture."""

from functools import partial

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, gated_mlp
from lullm.weights.rule import decoder_rules


def build_llama(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(
        rules=decoder_rules(tied=config.tie_word_embeddings),
        qkv_bias=config.family.attention_bias,
        o_bias=config.family.attention_bias,
        make_mlp=partial(gated_mlp, bias=config.family.mlp_bias),
    )
    return CausalLM(config, style, dtype, max_model_len)
