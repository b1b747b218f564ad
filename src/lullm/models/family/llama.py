"""Llama 1 to 3 (https://arxiv.org/abs/2407.21783) and the many checkpoints that share its architecture.

SmolLM3 (some layers do not rotate their heads) and Granite 3 and 4, dense (factors on the embedding, the residual
stream, the scores and the logits) differ in their config only, Seed-OSS in its biases. Arcee has no gates.
"""

from dataclasses import replace
from functools import partial

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, gated_mlp, plain_mlp, rules_of
from lullm.models.family.layer_norm.parallel import UNGATED_RENAMES


def build_llama(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(
        rules_of(config),
        qkv_bias=config.family.attention_bias,
        o_bias=config.family.attention_bias,
        make_mlp=partial(gated_mlp, bias=config.family.mlp_bias),
    )
    return CausalLM(config, style, dtype, max_model_len)


def build_arcee(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules, bias = rules_of(config), config.family.attention_bias
    rules = replace(rules, renames=(*rules.renames, *UNGATED_RENAMES))
    return CausalLM(config, DecoderStyle(rules, qkv_bias=bias, o_bias=bias, make_mlp=plain_mlp), dtype, max_model_len)


def build_seed_oss(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    family = config.family
    style = DecoderStyle(
        rules_of(config),
        qkv_bias=family.attention_bias,
        o_bias=family.output_bias,
        make_mlp=partial(gated_mlp, bias=family.mlp_bias),
    )
    return CausalLM(config, style, dtype, max_model_len)
