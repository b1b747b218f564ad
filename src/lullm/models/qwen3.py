"""Qwen3, dense (https://arxiv.org/abs/2505.09388): Llama with an RMSNorm on every query and key head."""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle
from lullm.weights.rule import decoder_rules


def build_qwen3(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(
        rules=decoder_rules(tied=config.tie_word_embeddings),
        head_norms=True,
        qkv_bias=config.family.attention_bias,
        o_bias=config.family.attention_bias,
    )
    return CausalLM(config, style, dtype, max_model_len)
