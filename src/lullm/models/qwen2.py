"""Qwen2 and 2.5, dense (https://arxiv.org/abs/2407.10671): Llama with biases on queries, keys and values."""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle
from lullm.weights.rule import decoder_rules


def build_qwen2(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(rules=decoder_rules(tied=config.tie_word_embeddings), qkv_bias=True)
    return CausalLM(config, style, dtype, max_model_len)
