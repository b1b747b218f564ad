"""HunYuan, dense and with experts (https://arxiv.org/abs/2411.02265): heads are rotated, then normed."""

from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle
from lullm.models.family.experts.routed import experts_or_mlp
from lullm.models.rules import rules_of
from lullm.weights.rule import renames

RENAMES = renames(
    (r"\.self_attn\.query_layernorm\.", ".self_attn.q_norm."),
    (r"\.self_attn\.key_layernorm\.", ".self_attn.k_norm."),
    (r"\.mlp\.gate\.wg\.", ".mlp.gate."),
    (r"\.mlp\.shared_mlp\.", ".mlp.shared_expert."),
)


def hunyuan_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config, *RENAMES), qk_norm="turned_heads", make_mlp=experts_or_mlp)
