"""StarCoder 2 (https://arxiv.org/abs/2402.19173), StableLM (https://arxiv.org/abs/2402.17834), Nemotron and Minitron
(https://arxiv.org/abs/2402.16819), Jais 2 and OLMo (https://arxiv.org/abs/2402.00838): Llama's order, with layer norms.

Nemotron's norms hold w but multiply by 1 + w; OLMo's have no weights. StarCoder 2 and Nemotron have no gates.
"""

import re
from dataclasses import replace
from functools import partial

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import CausalLM, DecoderLayer, DecoderStyle, plain_mlp, rules_of
from lullm.models.family.layer_norm.parallel import UNGATED_RENAMES, ParallelLayer, layer_norm
from lullm.weights.rule import Offset, renames

STARCODER2_RENAMES = renames((r"\.mlp\.c_fc\.", ".mlp.fc1."), (r"\.mlp\.c_proj\.", ".mlp.fc2."))


def build_starcoder2(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    rules = rules_of(config, *STARCODER2_RENAMES)
    style = DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_stablelm(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(
        rules_of(config),
        make_norm=layer_norm,
        make_layer=ParallelLayer if config.family.has_parallel_mlp else DecoderLayer,
    )
    return CausalLM(config, style, dtype, max_model_len)


def build_nemotron(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    return build_jais2(config, dtype, max_model_len, (Offset(re.compile(r"norm\.weight$"), 1.0),))


def build_jais2(
    config: ModelConfig, dtype: torch.dtype, max_model_len: int, offsets: tuple[Offset, ...] = ()
) -> CausalLM:
    """Nemotron without the 1."""
    rules = replace(rules_of(config, *UNGATED_RENAMES), offsets=offsets)
    style = DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp)
    return CausalLM(config, style, dtype, max_model_len)


def build_olmo1(config: ModelConfig, dtype: torch.dtype, max_model_len: int) -> CausalLM:
    style = DecoderStyle(rules_of(config), make_norm=partial(layer_norm, has_weight=False, has_bias=False))
    return CausalLM(config, style, dtype, max_model_len)
