"""StarCoder 2 (https://arxiv.org/abs/2402.19173), StableLM (https://arxiv.org/abs/2402.17834), Nemotron and Minitron
(https://arxiv.org/abs/2402.16819), Jais 2 and OLMo (https://arxiv.org/abs/2402.00838): Llama's order, with layer norms.

Nemotron's norms hold w but multiply by 1 + w; OLMo's have no weights. StarCoder 2 and Nemotron have no gates.
"""

import re
from dataclasses import replace
from functools import partial

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, plain_mlp
from lullm.models.family.layer_norm.parallel import UNGATED_RENAMES, ParallelLayer, layer_norm
from lullm.models.rules import rules_of
from lullm.weights.rule import Offset, renames

STARCODER2_RENAMES = renames((r"\.mlp\.c_fc\.", ".mlp.fc1."), (r"\.mlp\.c_proj\.", ".mlp.fc2."))


def starcoder2_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config, *STARCODER2_RENAMES)
    return DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp)


def stablelm_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(
        rules_of(config),
        make_norm=layer_norm,
        make_layer=ParallelLayer if config.family.has_parallel_mlp else DecoderLayer,
    )


def nemotron_style(config: ModelConfig) -> DecoderStyle:
    return jais2_style(config, (Offset(re.compile(r"norm\.weight$"), 1.0),))


def jais2_style(config: ModelConfig, offsets: tuple[Offset, ...] = ()) -> DecoderStyle:
    """Nemotron without the 1."""
    rules = replace(rules_of(config, *UNGATED_RENAMES), offsets=offsets)
    return DecoderStyle(rules, make_norm=layer_norm, make_mlp=plain_mlp)


def olmo1_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config), make_norm=partial(layer_norm, has_weight=False, has_bias=False))
