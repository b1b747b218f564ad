"""Command R (https://huggingface.co/CohereLabs/c4ai-command-r-v01) and Command R7B and A
(https://arxiv.org/abs/2504.00698): pairs of neighbours turn, norms have no bias, logits are scaled.

The newer ones have windows in three of four layers; the others do not rotate their heads. Command A Plus has experts.
"""

import re
from dataclasses import replace
from functools import partial

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, new_norm
from lullm.models.family.experts.routed import GLM_RENAMES, experts_or_mlp
from lullm.models.family.glm import with_neighbours
from lullm.models.family.layer_norm.parallel import ParallelLayer, layer_norm
from lullm.weights.rule import Scale

_norm = partial(layer_norm, has_bias=False)


def cohere_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(with_neighbours(config), make_norm=_norm, make_layer=ParallelLayer)


def cohere2_moe_style(config: ModelConfig) -> DecoderStyle:
    style, family = cohere_style(config), config.family
    assert family.experts is not None, "of a family with experts"
    shared = Scale(re.compile(r"\.shared_expert\.down_proj\.weight$"), family.experts.shared_scale)
    rules = style.rules.plus(renames=GLM_RENAMES, scales=(shared,))
    make_norm = _norm if family.norms_have_mean else new_norm
    return replace(style, rules=rules, make_mlp=experts_or_mlp, make_norm=make_norm)
