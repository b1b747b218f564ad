"""HyperCLOVA X: Granite's factors, and norms on both sides of attention and MLP."""

import re
from dataclasses import replace

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.rules import rules_of
from lullm.weights.rule import Scale, renames

RENAMES = renames(
    (r"\.post_attention_layernorm\.", ".pre_feedforward_layernorm."),
    (r"\.post_norm1\.", ".post_attention_layernorm."),
    (r"\.post_norm2\.", ".post_feedforward_layernorm."),
)


def hyperclovax_style(config: ModelConfig) -> DecoderStyle:
    rules, family = rules_of(config), config.family
    if family.has_post_norms:  # the factor on their results is in their weights
        behind = Scale(re.compile(r"\.post_(attention|feedforward)_layernorm\.weight$"), family.residual_scale)
        rules = replace(rules, renames=(*rules.renames, *RENAMES), scales=(behind,))
    return DecoderStyle(rules, make_layer=GemmaLayer if family.has_post_norms else None)
