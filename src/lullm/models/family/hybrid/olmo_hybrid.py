"""OLMo Hybrid (https://huggingface.co/allenai/Olmo-Hybrid-7B): gated delta nets in three of four layers.

The others have attention as in OLMo 3, with norms after it; delta nets have norms before them.
"""

from functools import partial

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderLayer, DecoderStyle, LayerSpec
from lullm.models.family.hybrid.qwen_next import delta_net_or_attention
from lullm.models.family.olmo import OlmoLayer
from lullm.models.rules import rules_of
from lullm.weights.rule import Fusion, renames

MIXER_EPS = 1e-5
"""The epsilon of the norm after the delta net; other norms may differ."""


def _layer(spec: LayerSpec) -> DecoderLayer:
    return (DecoderLayer if spec.is_recurrent else OlmoLayer)(spec)


def olmo_hybrid_style(config: ModelConfig) -> DecoderStyle:
    own = renames(
        (r"\.attention_layer_norm\.", ".input_layernorm."),
        (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
        (r"\.linear_attn\.o_proj\.", ".linear_attn.out_proj."),
        (r"\.linear_attn\.o_norm\.", ".linear_attn.norm."),
    )
    rules = rules_of(config).plus(
        own,
        fusions=(
            Fusion(("q_proj", "k_proj", "v_proj", "g_proj"), "in_proj_qkvz"),
            Fusion(("b_proj", "a_proj"), "in_proj_ba"),
            Fusion(("q_conv1d", "k_conv1d", "v_conv1d"), "conv1d"),
        ),
    )
    return DecoderStyle(
        rules,
        qk_norm="rows",
        make_mixers=partial(delta_net_or_attention, eps=MIXER_EPS, is_apart=True),
        make_layer=_layer,
    )
