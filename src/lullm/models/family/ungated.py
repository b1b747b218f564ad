"""Families without gates, with RMSNorm: Apertus (https://arxiv.org/abs/2509.14233), whose activation is learned, and
nanochat (https://github.com/karpathy/nanochat), whose norms have no weights."""

import re
from dataclasses import replace

import torch

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, plain_mlp
from lullm.models.family.layer_norm.parallel import UNGATED_RENAMES
from lullm.models.rules import rules_of
from lullm.nn.mlp import XieluMLP
from lullm.nn.norm import RMSNorm
from lullm.weights.rule import HeadOrder, renames

APERTUS_RENAMES = renames(
    (r"\.attention_layernorm\.", ".input_layernorm."), (r"\.feedforward_layernorm\.", ".post_attention_layernorm.")
)


def _xielu_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> XieluMLP:
    return XieluMLP(config.hidden_size, config.family.inner_size(layer), config.family.mlp_bias, dtype)


def apertus_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config, *UNGATED_RENAMES, *APERTUS_RENAMES), qk_norm="heads", make_mlp=_xielu_mlp)


def _empty_norm(config: ModelConfig, dtype: torch.dtype) -> RMSNorm:
    return RMSNorm(config.hidden_size, config.family.rms_norm_eps, dtype, has_weight=False)


def nanochat_style(config: ModelConfig) -> DecoderStyle:
    """Heads turn the other way round: as in a head whose halves are exchanged."""
    rules, half = rules_of(config), config.head_dim // 2
    order = (*range(half, 2 * half), *range(half))
    return DecoderStyle(
        replace(rules, head_orders=(HeadOrder(re.compile(r"\.self_attn\.[qk]_proj\."), order),)),
        qk_norm="bare_heads",
        make_norm=_empty_norm,
        make_mlp=plain_mlp,
        norms_embedding=True,
    )
