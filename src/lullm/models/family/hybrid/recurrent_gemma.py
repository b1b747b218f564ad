"""RecurrentGemma (https://arxiv.org/abs/2404.07839): Griffin's recurrent blocks, and attention with a window."""

import re

from torch import nn

from lullm.config.layer.recurrent import GatedUnitConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone
from lullm.models.rules import rules_of
from lullm.nn.recurrent.gated_unit import GatedUnit
from lullm.weights.rule import Fusion, Offset, renames

PLUS_ONE = Offset(re.compile(r"norm\.weight$"), 1.0)


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    if not spec.is_recurrent:
        return attention_alone(spec)
    unit, activation = spec.config.family.recurrent, spec.config.family.activation
    assert isinstance(unit, GatedUnitConfig), "of this family"
    return {"unit": GatedUnit(unit, spec.config.hidden_size, activation, spec.number, spec.place, spec.dtype)}


def recurrent_gemma_style(config: ModelConfig) -> DecoderStyle:
    own = renames(
        (r"^model\.final_norm\.", "model.norm."),
        (r"\.temporal_pre_norm\.", ".input_layernorm."),
        (r"\.channel_pre_norm\.", ".post_attention_layernorm."),
        (r"\.mlp_block\.", ".mlp."),
        (r"\.temporal_block\.(?=[qkvo]_proj\.)", ".self_attn."),
        (r"\.temporal_block\.(rg_lru\.)?", ".unit."),
        (r"\.unit\.conv_1d\.", ".unit.conv1d."),
        (r"\.unit\.linear_out\.", ".unit.out_proj."),
    )
    fusion = Fusion(("linear_y", "linear_x"), "in_proj")
    return DecoderStyle(rules_of(config).plus(own, fusions=(fusion,), offsets=(PLUS_ONE,)), make_mixers=_mixers)
