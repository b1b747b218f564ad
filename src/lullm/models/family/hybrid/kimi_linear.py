"""Kimi Linear (https://arxiv.org/abs/2510.26692): Kimi Delta Attention in three of four layers, latent vectors without
positions in the others, and DeepSeek-V3's experts.
"""

import re

from torch import nn

from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec
from lullm.models.family.experts.deepseek import latent_attention
from lullm.models.family.experts.routed import GLM_RENAMES, MIXTRAL_RENAMES, experts_or_mlp
from lullm.models.rules import drafts_of, rules_of
from lullm.nn.recurrent.kimi_delta import KimiDelta
from lullm.weights.rule import Fusion, renames


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    if not spec.is_recurrent:
        return latent_attention(spec)
    delta_net, sizes = spec.config.family.recurrent, (spec.config.hidden_size, spec.config.family.rms_norm_eps)
    assert isinstance(delta_net, DeltaNetConfig), "of this family"
    return {"self_attn": KimiDelta(delta_net, *sizes, spec.number, spec.place, spec.dtype)}


def kimi_linear_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config, *MIXTRAL_RENAMES, *GLM_RENAMES).plus(
        renames((r"\.forget_gate\.", ".")),
        fusions=(
            Fusion(("f_a_proj", "g_a_proj"), "fg_down"),
            Fusion(("q_conv1d", "k_conv1d", "v_conv1d"), "conv1d"),
        ),
        drops=(drafts_of(config),),
        flattens=(re.compile(r"\.A_log$"),),
    )
    return DecoderStyle(rules, make_mlp=experts_or_mlp, make_mixers=_mixers)
