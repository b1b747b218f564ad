"""GLM-4 (https://arxiv.org/abs/2406.12793), dense: norms on both sides, and neighbours turn in a part of every head."""

import re
from dataclasses import replace

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, rules_of
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.weights.rule import HeadOrder, Rename, rotated_first

GLM4_RENAMES = tuple(
    Rename(re.compile(rf"\.{theirs}_layernorm\."), f".{ours}_layernorm.")
    for theirs, ours in (
        ("post_attention", "pre_feedforward"),
        ("post_self_attn", "post_attention"),
        ("post_mlp", "post_feedforward"),
    )
)


def build_glm4(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules, size = rules_of(config), config.head_dim
    order = rotated_first(size, config.family.rotary_dim(size), has_neighbours=True)
    rules = replace(
        rules,
        renames=(*rules.renames, *GLM4_RENAMES),
        fusions=tuple(fusion for fusion in rules.fusions if fusion.into != "gate_up_proj"),  # one tensor already
        head_orders=(HeadOrder(re.compile(r"\.self_attn\.[qk]_proj\."), order),),
    )
    style = DecoderStyle(rules, qkv_bias=config.family.attention_bias, make_layer=GemmaLayer)
    return CausalLM(config, style, dtype, max_model_len)
