"""Kimi Linear (https://arxiv.org/abs/2510.26692): Kimi Delta Attention in three of four layers, latent vectors without
positions in the others, and DeepSeek-V3's experts.
"""

import re
from dataclasses import replace

import torch
from torch import nn

from lullm.config.layer.recurrent import DeltaNetConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, place_of, rules_of
from lullm.models.family.experts.deepseek import latent_attention
from lullm.models.family.experts.routed import GLM_RENAMES, MIXTRAL_RENAMES, drafts_of, experts_or_mlp
from lullm.nn.recurrent.kimi_delta import KimiDelta
from lullm.types.layer_kind import RecurrentState
from lullm.weights.rule import Fusion, Rename


def _mixers(
    config: ModelConfig, style: DecoderStyle, layer: int, group: int, dtype: torch.dtype
) -> dict[str, nn.Module]:
    if not isinstance(config.layer_kinds[layer], RecurrentState):
        return latent_attention(config, style, layer, group, dtype)
    delta_net, sizes = config.family.recurrent, (config.hidden_size, config.family.rms_norm_eps)
    assert isinstance(delta_net, DeltaNetConfig), "of this family"
    return {"self_attn": KimiDelta(delta_net, *sizes, layer, place_of(config, layer), dtype)}


def kimi_linear_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config)
    rules = replace(
        rules,
        renames=(
            Rename(re.compile(r"\.forget_gate\."), "."), *rules.renames, *MIXTRAL_RENAMES, *GLM_RENAMES,
        ),
        fusions=(
            *rules.fusions,
            Fusion(("f_a_proj", "g_a_proj"), "fg_down"),
            Fusion(("q_conv1d", "k_conv1d", "v_conv1d"), "conv1d"),
        ),
        drops=(*rules.drops, drafts_of(config)),
        flattens=(re.compile(r"\.A_log$"),),
    )  # fmt: skip
    return DecoderStyle(rules, make_mlp=experts_or_mlp, make_mixers=_mixers)
