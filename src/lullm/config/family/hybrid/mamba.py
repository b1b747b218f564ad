"""Mamba 1 and 2 and Falcon Mamba, which have no attention, and Jamba, which has some."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.experts.reading import TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import MOST_KERNEL, StateSpaceKeys, expanded_size, only_silu
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import (
    MOST_HEAD_DIM,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    Data,
    boolean,
    integer,
    positive_float,
    positive_int,
)
from lullm.config.layer.recurrent import RecurrentConfig, SelectiveConfig
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import RecurrentState

UNBOUNDED_LEN = 1 << 20
"""Length of models without positions: no table and no memory grows with it."""
_STATE_SPACE = StateSpaceKeys(
    num_heads="num_heads",
    head_dim="head_dim",
    num_groups="n_groups",
    state_size="state_size",
    kernel_size="conv_kernel",
    bias="use_bias",
    expand="expand",
    convolution_bias="use_conv_bias",
)


def _without_heads(data: Data) -> Data:
    """The common keys, for a model without heads of attention."""
    assumed = {"head_dim": 2, "max_position_embeddings": UNBOUNDED_LEN}
    return {**assumed, **data, "num_attention_heads": 1, "num_key_value_heads": 1}


def _step_rank(data: Data, name: str) -> int:
    if data.get(name, "auto") == "auto":
        return -(-positive_int(data, "hidden_size", most=MOST_HIDDEN) // 16)
    return positive_int(data, name, most=MOST_HIDDEN)


def _selective(data: Data) -> SelectiveConfig:
    eps = data.get("mixer_rms_eps")
    return SelectiveConfig(
        num_channels=positive_int(data, "intermediate_size", expanded_size(data, "expand"), MOST_INTERMEDIATE),
        state_size=positive_int(data, "state_size", most=MOST_HEAD_DIM),
        kernel_size=positive_int(data, "conv_kernel", most=MOST_KERNEL),
        step_rank=_step_rank(data, "time_step_rank"),
        convolution_bias=boolean(data, "use_conv_bias", True),
        projection_bias=boolean(data, "use_bias", False),
        norm_eps=None if eps is None else positive_float(data, "mixer_rms_eps", 1e-6),
    )


def _jamba(data: Data) -> SelectiveConfig:
    return SelectiveConfig(
        num_channels=expanded_size(data, "mamba_expand"),
        state_size=positive_int(data, "mamba_d_state", most=MOST_HEAD_DIM),
        kernel_size=positive_int(data, "mamba_d_conv", most=MOST_KERNEL),
        step_rank=_step_rank(data, "mamba_dt_rank"),
        convolution_bias=boolean(data, "mamba_conv_bias", True),
        projection_bias=boolean(data, "mamba_proj_bias", False),
        norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        has_norm_weights=True,
    )


def _alone(read_state: Callable[[Data], RecurrentConfig], own: Mapping[str, Any]) -> Family:
    """A family whose layers are all mixers of this config."""

    def read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
        only_silu(data, "hidden_act")
        return DecoderConfig(
            intermediate_size=positive_int(data, "hidden_size"),
            rms_norm_eps=positive_float(data, "layer_norm_epsilon", 1e-5),
            ropes=(None,) * len(kinds),
            attention_scale=1.0,
            recurrent=read_state(data),
        )

    def layer_kinds(data: Data) -> Kinds:
        return (RecurrentState(read_state(data).state_shapes),) * num_layers(data)

    defaults = {"expand": 2, "conv_kernel": 4}
    return Family(
        read,
        defaults=defaults | dict(own),
        reads=frozenset(
            {"hidden_act", "layer_norm_epsilon", "use_bias", "use_conv_bias", "time_step_rank", "time_step_limit"}
            | {"intermediate_size"}  # in Mamba 2 it repeats other keys
        ),
        ignores=_INITIAL | _REPEATED,
        layer_kinds=layer_kinds,
        derive=_without_heads,
    )


def _period(data: Data, name: str, period: int, offset: int) -> list[bool]:
    """By layer, whether it is one of the period `name`."""
    period = positive_int(data, f"{name}_period", period)
    offset = integer(data, f"{name}_offset", offset)
    if not 0 <= offset < period:
        raise ModelLoadError(f"config.json: {name}_offset ({offset}) must be from 0 to below {name}_period ({period})")
    return [layer % period == offset for layer in range(num_layers(data))]


def _jamba_kinds(data: Data) -> Kinds:
    types = [FULL if attends else LINEAR for attends in _period(data, "attn_layer", 8, 4)]
    return kinds_by_type({**data, "layer_types": None}, {LINEAR: RecurrentState(_jamba(data).state_shapes)}, types)


def _read_jamba(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "hidden_act")
    config = DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        recurrent=_jamba(data),
    )
    if integer(data, "num_experts", 16) <= 1:
        return config
    experts = read_experts(data, "num_experts", "intermediate_size", tuple(_period(data, "expert_layer", 2, 1)))
    return replace(config, experts=replace(experts, normalizes=False))


_INITIAL = {
    "time_step_min", "time_step_max", "time_step_floor", "time_step_scale", "time_step_init_scheme",
    "rescale_prenorm_residual", "residual_in_fp32", "chunk_size", "use_mambapy", "use_falcon_mambapy",
    "use_associative_scan", "use_mamba_kernels", "num_logits_to_keep",
}  # fmt: skip
"""Keys of the initialization, of the method of computation, and of the type of sums between layers."""

_REPEATED = frozenset(
    {"d_inner", "d_model", "n_layer", "norm_before_gate", "rms_norm", "fused_add_norm"}
    | {"pad_vocab_size_multiple", "ssm_cfg"}
)
"""Keys of the first files that repeat others; and of Mamba 2, whose gates come before the norm."""

MAMBA = _alone(_selective, {"tie_word_embeddings": True, "state_size": 16})
FALCON_MAMBA = _alone(_selective, {**MAMBA.defaults, "mixer_rms_eps": 1e-6})
MAMBA2 = _alone(_STATE_SPACE.read, {"num_heads": 128, "head_dim": 64, "state_size": 128, "n_groups": 8})
JAMBA = Family(
    _read_jamba,
    defaults={
        "num_key_value_heads": 8, "intermediate_size": 14336, "num_experts": 16, "num_experts_per_tok": 2,
        "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "max_position_embeddings": 262144,
    },
    aliases={"num_local_experts": "num_experts"},
    reads={
        "hidden_act", "rms_norm_eps", "mamba_dt_rank", "mamba_conv_bias", "mamba_proj_bias", "attn_layer_period",
        "attn_layer_offset", "expert_layer_period", "expert_layer_offset",
    },
    ignores=TRAINING
    | _INITIAL
    | {"layers_block_type", "sliding_window", "mamba_inner_layernorms", "calc_logits_for_entire_prompt"},
    layer_kinds=_jamba_kinds,
)  # fmt: skip
