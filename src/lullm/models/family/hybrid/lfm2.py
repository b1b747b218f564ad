"""LFM2 (https://arxiv.org/abs/2511.23404): gated short convolutions in most layers, attention with head norms in the
others. LFM2 MoE has experts behind a sigmoid router in all but the first layers. In LFM3 some layers of attention have
a window, a gate multiplies each head's result, and mixers and MLPs have norms on both sides."""

from torch import nn

from lullm.config.layer.recurrent import ShortConvolutionConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone
from lullm.models.family.experts.routed import MIXTRAL_RENAMES, ROW_STACKS, experts_or_mlp, with_gates_apart
from lullm.models.family.gemma.gemma3 import GemmaLayer
from lullm.models.rules import rules_of
from lullm.nn.recurrent.convolution import ShortConvolution
from lullm.weights.rule import renames

RENAMES = (
    renames(
        (r"^model\.embedding_norm\.", "model.norm."),
        (r"\.operator_norm\.", ".input_layernorm."),
        (r"\.ffn_norm\.", ".post_attention_layernorm."),
        (r"\.feed_forward\.", ".mlp."),
        (r"\.expert_bias$", ".gate.e_score_correction_bias"),
        (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.self_attn\.([qk])_layernorm\.", r".self_attn.\1_norm."),
        (r"\.conv\.conv\.", ".conv.conv1d."),
    )
    + MIXTRAL_RENAMES
)
LFM3_RENAMES = renames(
    (r"\.ffn_norm\.", ".pre_feedforward_layernorm."),
    (r"\.post_operator_norm\.", ".post_attention_layernorm."),
    (r"\.post_ffn_norm\.", ".post_feedforward_layernorm."),
)


def _mixers(spec: LayerSpec) -> dict[str, nn.Module]:
    """Attention, or a convolution in its place."""
    if not spec.is_recurrent:
        return attention_alone(spec)
    convolution = spec.config.family.recurrent
    assert isinstance(convolution, ShortConvolutionConfig), "of this family"
    return {"conv": ShortConvolution(convolution, spec.config.hidden_size, spec.number, spec.place, spec.dtype)}


def lfm2_style(config: ModelConfig) -> DecoderStyle:
    rules = rules_of(config, *RENAMES).plus(stacks=() if config.family.experts is None else ROW_STACKS)
    return DecoderStyle(rules, qk_norm="heads", make_mlp=experts_or_mlp, make_mixers=_mixers)


def lfm3_style(config: ModelConfig) -> DecoderStyle:
    family = config.family
    rules = rules_of(config, *(LFM3_RENAMES if family.has_post_norms else ()), *RENAMES)
    return DecoderStyle(
        rules if family.output_gate is None else with_gates_apart(rules),
        qk_norm="heads",
        make_mixers=_mixers,
        make_layer=GemmaLayer if family.has_post_norms else None,
    )
