"""State spaces (Mamba 2, https://arxiv.org/abs/2405.21060), alone and beside attention.

Granite 4 H and Bamba have them in place of most layers' attention, Falcon-H1 (https://arxiv.org/abs/2507.22448) beside
the attention of every layer, Mamba 1 (https://arxiv.org/abs/2312.00752) and 2 in place of all of it. Jamba
(https://arxiv.org/abs/2403.19887) has those of Mamba 1, and experts. In Nemotron-H (https://arxiv.org/abs/2504.03624) a
layer has one kind only: a state space, attention, an MLP or experts (Nemotron 3), both without gates.
"""

import re
from dataclasses import replace

import torch
from torch import Tensor, nn

from lullm.config.decoder import ParallelFactors
from lullm.config.layer.recurrent import SelectiveConfig, StateSpaceConfig
from lullm.config.model import ModelConfig
from lullm.models.decoder import DecoderStyle, LayerSpec, attention_alone, place_of
from lullm.models.family.experts.routed import experts_or_mlp
from lullm.models.rules import rules_of, with_one_gate_up
from lullm.nn.context import StepContext
from lullm.nn.experts import MixtureOfExperts
from lullm.nn.mlp import MLP
from lullm.nn.recurrent.selective import SelectiveScan
from lullm.nn.recurrent.state_space import StateSpace
from lullm.types.layer_kind import Nothing, RecurrentState
from lullm.weights.rule import PartScales, Scale, Stack, renames

BAMBA_RENAMES = renames(
    (r"^model\.final_layernorm\.", "model.norm."),
    (r"\.pre_ff_layernorm\.", ".post_attention_layernorm."),
    (r"\.feed_forward\.", ".mlp."),
)
GRANITE_RENAMES = renames(
    (r"\.block_sparse_moe\.router\.(layer\.)?", ".mlp.gate."),
    (r"\.block_sparse_moe\.input_linear\.weight$", ".mlp.experts.gate_up_proj"),
    (r"\.block_sparse_moe\.output_linear\.weight$", ".mlp.experts.down_proj"),
    (r"\.block_sparse_moe\.", ".mlp."),
)
GRANITE_STACKS = (
    Stack("experts", "gate_up_proj", ("gate_up_proj.weight",)),
    Stack("experts", "down_proj", ("down_proj.weight",)),
)


def _state_space_config(config: ModelConfig) -> StateSpaceConfig:
    state_space = config.family.recurrent
    assert isinstance(state_space, StateSpaceConfig), "of these families"
    return state_space


def _state_space(config: ModelConfig, index: int, dtype: torch.dtype) -> StateSpace:
    """The state space of entry `index` of `layer_kinds`."""
    sizes = _state_space_config(config), config.hidden_size, config.family.rms_norm_eps
    return StateSpace(*sizes, index, place_of(config, index), dtype)


def _selective(config: ModelConfig, index: int, dtype: torch.dtype) -> SelectiveScan:
    selective = config.family.recurrent
    assert isinstance(selective, SelectiveConfig), "of these families"
    return SelectiveScan(selective, config.hidden_size, index, place_of(config, index), dtype)


def _either(spec: LayerSpec) -> dict[str, nn.Module]:
    """Attention, or a state space in its place."""
    if spec.is_recurrent:
        make = _selective if isinstance(spec.config.family.recurrent, SelectiveConfig) else _state_space
        return {"mamba": make(spec.config, spec.number, spec.dtype)}
    return attention_alone(spec)


def bamba_style(config: ModelConfig) -> DecoderStyle:
    return DecoderStyle(rules_of(config, *BAMBA_RENAMES), make_mixers=_either)


def granite_hybrid_style(config: ModelConfig) -> DecoderStyle:
    """Dense models have the shared expert alone."""
    has_experts = config.family.experts is not None
    shared = ".mlp.shared_expert." if has_experts else ".mlp."
    of_shared = renames(
        (r"\.shared_mlp\.input_linear\.", f"{shared}gate_up_proj."),
        (r"\.shared_mlp\.output_linear\.", f"{shared}down_proj."),
    )
    rules = with_one_gate_up(rules_of(config, *of_shared, *GRANITE_RENAMES))
    rules = rules.plus(stacks=GRANITE_STACKS if has_experts else ())
    return DecoderStyle(rules, make_mixers=_either, make_mlp=experts_or_mlp)


def _side_by_side(spec: LayerSpec) -> dict[str, nn.Module]:
    attention = attention_alone(replace(spec, number=2 * spec.number))
    return attention | {"mamba": _state_space(spec.config, 2 * spec.number + 1, spec.dtype)}


def falcon_h1_style(config: ModelConfig) -> DecoderStyle:
    factors = config.family.factors
    assert factors is not None, "of this family"
    sizes = _state_space_config(config)
    in_sizes = sizes.inner_size, sizes.inner_size, sizes.group_size, sizes.group_size, sizes.num_heads
    rules = rules_of(config, *BAMBA_RENAMES).plus(
        scales=_scales(factors),
        part_scales=(
            PartScales(
                re.compile(r"\.mamba\.in_proj\.weight$"),
                in_sizes,
                tuple(factors.space_in * factor for factor in factors.space_parts),
            ),
            PartScales(re.compile(r"\.mamba\.in_proj\.bias$"), in_sizes, factors.space_parts),
        ),
    )
    return DecoderStyle(rules, make_mixers=_side_by_side)


def _scales(factors: ParallelFactors) -> tuple[Scale, ...]:
    """Factors on inputs scale matrices only, factors on outputs biases, too."""
    return (
        Scale(re.compile(r"\.self_attn\.[qkv]_proj\.weight$"), factors.attention_in),
        Scale(re.compile(r"\.self_attn\.o_proj\."), factors.attention_out),
        Scale(re.compile(r"\.mamba\.out_proj\."), factors.space_out),
        Scale(re.compile(r"\.mlp\.gate_proj\."), factors.mlp_gate),
        Scale(re.compile(r"\.mlp\.down_proj\."), factors.mlp_down),
    )


class FeedForward(MLP):
    """An MLP as the whole layer, in the place of a mixer, although it mixes no tokens."""

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # type: ignore[override]
        return super().forward(x, context.ops)


class FeedForwardExperts(MixtureOfExperts):
    """Experts as the whole layer."""

    def forward(self, x: Tensor, context: StepContext) -> Tensor:  # type: ignore[override]
        return super().forward(x, context.ops)


def _one_thing(spec: LayerSpec) -> dict[str, nn.Module]:
    if not isinstance(spec.config.layer_kinds[spec.number], Nothing):
        return _either(spec)
    family = spec.config.family
    if family.experts is not None and family.experts.layers[spec.number]:
        return {"moe": FeedForwardExperts(family.experts, spec.config.hidden_size, family.activation, spec.dtype)}
    sizes = spec.config.hidden_size, family.intermediate_size
    return {"feed_forward": FeedForward(*sizes, family.activation, family.mlp_bias, spec.dtype)}


def no_mlp(config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
    """The layer has only a mixer."""


BACKBONE_RENAMES = renames(
    (r"^backbone\.", "model."),
    (r"^model\.embeddings?\.", "model.embed_tokens."),
    (r"^model\.norm_f\.", "model.norm."),
    (r"^(model\.layers\.\d+)\.norm\.", r"\1.input_layernorm."),
)
STEP_BIAS = renames((r"\.dt_proj\.bias$", ".dt_bias"))


def mamba_style(config: ModelConfig) -> DecoderStyle:
    """Mamba 1 and 2: layers with only a state space."""
    own = (*BACKBONE_RENAMES, *renames((r"\.mixer\.", ".mamba.")), *STEP_BIAS)
    return DecoderStyle(rules_of(config).plus(own), make_mixers=_either, make_mlp=no_mlp)


def jamba_style(config: ModelConfig) -> DecoderStyle:
    own = (*BAMBA_RENAMES, *STEP_BIAS, *renames((r"\.mlp\.router\.", ".mlp.gate.")))
    return DecoderStyle(rules_of(config, *own), make_mixers=_either, make_mlp=experts_or_mlp)


def nemotron_h_style(config: ModelConfig) -> DecoderStyle:
    experts = config.family.experts
    names = {RecurrentState: "mamba", Nothing: "feed_forward"}
    by_layer = [
        (rf"^model\.layers\.{layer}\.mixer\.", f"model.layers.{layer}.{names.get(type(kind), 'self_attn')}.")
        for layer, kind in enumerate(config.layer_kinds)
        if experts is None or not experts.layers[layer]
    ]
    own = renames(
        *by_layer,
        (r"\.mixer\.", ".moe."),
        (r"\.moe\.shared_experts\.up_proj\.", ".moe.shared_expert.fc1."),
        (r"\.moe\.shared_experts\.down_proj\.", ".moe.shared_expert.fc2."),
        (r"(?<=\.moe\.experts\.)(\d+)\.up_proj\.", r"\1.gate_up_proj."),
        (r"\.moe\.fc1_latent_proj\.", ".moe.latent_in."),
        (r"\.moe\.fc2_latent_proj\.", ".moe.latent_out."),
        (r"\.feed_forward\.up_proj\.", ".feed_forward.fc1."),
        (r"\.feed_forward\.down_proj\.", ".feed_forward.fc2."),
    )
    rules = rules_of(config).plus((*BACKBONE_RENAMES, *own), drops=(re.compile(r"^mtp\."),))
    return DecoderStyle(with_one_gate_up(rules), make_mlp=no_mlp, make_mixers=_one_thing)
