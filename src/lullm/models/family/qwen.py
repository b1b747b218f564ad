"""Qwen2 (https://arxiv.org/abs/2407.10671) and Qwen3 (https://arxiv.org/abs/2505.09388), dense.

Qwen2 is Llama with biases on queries, keys and values; Qwen3 is Llama with an RMSNorm on every query and key head.
"""

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, rules_of


def build_qwen2(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    return CausalLM(config, DecoderStyle(rules_of(config), qkv_bias=True), dtype, max_model_len)


def build_qwen3(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(
        rules_of(config),
        head_norms=True,
        qkv_bias=config.family.attention_bias,
        o_bias=config.family.attention_bias,
    )
    return CausalLM(config, style, dtype, max_model_len)
