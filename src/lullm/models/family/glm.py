"""GLM-4 (https://arxiv.org/abs/2406.12793), dense, ERNIE 4.5 and Helium: pairs of neighbours are rotated.

In GLM only in a part of a head. The newer GLM-4-0414 has norms on both sides of attention and MLP.
"""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.rules import drafts_of, rules_of, with_one_gate_up
from lullm.weights.rule import HeadOrder, Rename, WeightRules, renames, rotated_first

GLM4_RENAMES = renames(
    (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
    (r"\.post_self_attn_layernorm\.", ".post_attention_layernorm."),
    (r"\.post_mlp_layernorm\.", ".post_feedforward_layernorm."),
)


def with_neighbours(config: ModelConfig, *renames: Rename) -> WeightRules:
    """As `rules_of`, with queries and keys in the order in which pairs are halves apart."""
    size = config.head_dim
    order = rotated_first(size, config.family.rotary_dim(size), has_neighbours=True)
    return replace(rules_of(config, *renames), head_orders=(HeadOrder(re.compile(r"\.self_attn\.[qk]_proj\."), order),))


def glm_style(config: ModelConfig) -> DecoderStyle:
    rules = with_one_gate_up(with_neighbours(config))
    return DecoderStyle(rules)


def glm4_style(config: ModelConfig) -> DecoderStyle:
    """GLM-OCR's files hold a layer that drafts, too."""
    rules = with_one_gate_up(with_neighbours(config, *GLM4_RENAMES))
    return DecoderStyle(rules.plus(drops=(drafts_of(config),)), make_layer=GemmaLayer)


def helium_style(config: ModelConfig) -> DecoderStyle:
    """ERNIE 4.5, too."""
    return DecoderStyle(with_neighbours(config))
