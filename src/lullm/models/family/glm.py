"""GLM-4 (https://arxiv.org/abs/2406.12793), dense, ERNIE 4.5 and Helium: pairs of neighbours are rotated.

In GLM only in a part of a head. The newer GLM-4-0414 has norms on both sides of attention and MLP.
"""

import re
from dataclasses import replace
from functools import partial

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderStyle, gated_mlp, rules_of
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.weights.rule import HeadOrder, Rename, WeightRules, rotated_first

GLM4_RENAMES = tuple(
    Rename(re.compile(rf"\.{theirs}_layernorm\."), f".{ours}_layernorm.")
    for theirs, ours in (
        ("post_attention", "pre_feedforward"),
        ("post_self_attn", "post_attention"),
        ("post_mlp", "post_feedforward"),
    )
)


def with_neighbours(config: ModelConfig) -> WeightRules:
    """Llama's rules, with queries and keys reordered for pairs (i, i + D / 2)."""
    size = config.head_dim
    order = rotated_first(size, config.family.rotary_dim(size), has_neighbours=True)
    return replace(rules_of(config), head_orders=(HeadOrder(re.compile(r"\.self_attn\.[qk]_proj\."), order),))


def _with_one_gate_up(rules: WeightRules) -> WeightRules:
    """The rules for checkpoints with gates and ups as one tensor."""
    return replace(rules, fusions=tuple(fusion for fusion in rules.fusions if fusion.into != "gate_up_proj"))


def build_glm(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = _with_one_gate_up(with_neighbours(config))
    return CausalLM(config, DecoderStyle(rules, qkv_bias=config.family.attention_bias), dtype, max_model_len)


def build_glm4(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = _with_one_gate_up(with_neighbours(config))
    rules = replace(rules, renames=(*rules.renames, *GLM4_RENAMES))
    style = DecoderStyle(rules, qkv_bias=config.family.attention_bias, make_layer=GemmaLayer)
    return CausalLM(config, style, dtype, max_model_len)


def build_helium(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(with_neighbours(config), qkv_bias=config.family.attention_bias)
    return CausalLM(
        config,
        replace(style, make_mlp=partial(gated_mlp, bias=config.family.mlp_bias)),
        dtype,
        max_model_len,
    )


def build_ernie4_5(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    bias = config.family.attention_bias
    style = DecoderStyle(
        with_neighbours(config), qkv_bias=bias, o_bias=bias, make_mlp=partial(gated_mlp, bias=config.family.mlp_bias)
    )
    return CausalLM(config, style, dtype, max_model_len)
