"""Hybrids with state spaces (Mamba 2): Granite 4 H, Bamba, and Falcon-H1, whose layers have attention beside them."""

from dataclasses import replace
from typing import Literal

from lullm.config.decoder import DecoderConfig, ParallelFactors
from lullm.config.family.dense import DENSE_READS, read_dense, read_partial
from lullm.config.family.experts.reading import TRAINING, read_experts
from lullm.config.family.family import Family
from lullm.config.family.granite import read_granite
from lullm.config.family.hybrid.reading import StateSpaceKeys, only_silu
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type, num_layers
from lullm.config.field import (
    MOST_INTERMEDIATE,
    Data,
    boolean,
    integer,
    positive_float,
    positive_int,
    shown,
)
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import FullAttention, RecurrentState

_STATE_SPACE = StateSpaceKeys(
    num_heads="mamba_n_heads",
    head_dim="mamba_d_head",
    num_groups="mamba_n_groups",
    state_size="mamba_d_state",
    kernel_size="mamba_d_conv",
    bias="mamba_proj_bias",
    expand="mamba_expand",
    inner_size="mamba_d_ssm",
    convolution_bias="mamba_conv_bias",
)


def _state(data: Data) -> RecurrentState:
    return RecurrentState(_STATE_SPACE.read(data).state_shapes)


def _by_layer_types(data: Data) -> Kinds:
    return kinds_by_type(data, {LINEAR: _state(data)}, [LINEAR] * num_layers(data))


def _by_indices(data: Data) -> Kinds:
    """Bamba: attention in the layers of `attn_layer_indices`."""
    indices = data.get("attn_layer_indices") or []
    if not isinstance(indices, list) or not all(isinstance(index, int) for index in indices):
        raise ModelLoadError(f"config.json: attn_layer_indices must be a list of layers, not {shown(indices)}")
    types = [FULL if layer in indices else LINEAR for layer in range(num_layers(data))]
    kinds = kinds_by_type({**data, "layer_types": None}, {LINEAR: _state(data)}, types)
    stated = data.get("layer_types")
    if stated is not None and stated != types:
        raise ModelLoadError(
            f"config.json: by attn_layer_indices the layers are {shown(types)}, and layer_types says {shown(stated)}"
        )
    return kinds


def _side_by_side(data: Data) -> Kinds:
    """Falcon-H1: two entries per layer."""
    if (stated := data.get("layer_types")) is not None and stated != ["hybrid"] * num_layers(data):
        raise ModelLoadError(f"config.json: layer_types {shown(stated)}: in this architecture all layers are hybrid")
    return (FullAttention(), _state(data)) * num_layers(data)


def _read_granite(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "hidden_act")
    shared_size = positive_int(data, "shared_intermediate_size", most=MOST_INTERMEDIATE)
    config = read_granite({**data, "intermediate_size": shared_size}, kinds, head_dim)
    config = replace(config, recurrent=_STATE_SPACE.read(data))
    if (kind := data.get("position_embedding_type")) != "rope":
        if kind not in (None, "nope"):
            raise ModelLoadError(
                f"config.json: position_embedding_type {shown(kind)} is not supported, only rope, null"
            )
        config = replace(config, ropes=(None,) * len(kinds))
    if integer(data, "num_local_experts", 8) < 1:
        return config
    experts = read_experts(data, "num_local_experts", "intermediate_size")
    return replace(config, experts=replace(experts, shared_intermediate_size=shared_size))


def _read_bamba(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "hidden_act")
    return replace(read_partial(data, kinds, head_dim, default=0.5), recurrent=_STATE_SPACE.read(data))


def _factors(data: Data, name: str, count: int) -> tuple[float, ...]:
    values = [1.0] * count if data.get(name) is None else data[name]
    if not isinstance(values, list) or len(values) != count:
        raise ModelLoadError(f"config.json: {name} must be {count} numbers, not {shown(values)}")
    return tuple(positive_float({name: value}, name, 1.0) for value in values)


def _read_falcon(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "hidden_act")
    config = read_dense(data, kinds[::2], head_dim)
    gate: Literal["before norm", "behind norm", "no norm"] = "no norm"
    if boolean(data, "mamba_rms_norm", False):
        gate = "behind norm" if boolean(data, "mamba_norm_before_gate", True) else "before norm"
    mlp_gate, mlp_down = _factors(data, "mlp_multipliers", 2)
    has_bias = boolean(data, "projectors_bias", False)
    return replace(
        config,
        attention_scale=config.attention_scale * positive_float(data, "key_multiplier", 1.0),
        embedding_scale=positive_float(data, "embedding_multiplier", 1.0),
        logit_scale=positive_float(data, "lm_head_multiplier", 1.0),
        recurrent=replace(_STATE_SPACE.read(data), output_bias=has_bias, gate=gate),
        kinds_per_layer=2,
        factors=ParallelFactors(
            attention_in=positive_float(data, "attention_in_multiplier", 1.0),
            attention_out=positive_float(data, "attention_out_multiplier", 1.0),
            space_in=positive_float(data, "ssm_in_multiplier", 1.0),
            space_out=positive_float(data, "ssm_out_multiplier", 1.0),
            space_parts=_factors(data, "ssm_multipliers", 5),
            mlp_gate=mlp_gate,
            mlp_down=mlp_down,
        ),
    )


_SIZES = {
    "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_head": "auto", "mamba_d_conv": 4,
    "mamba_expand": 2,
}  # fmt: skip
_READS = DENSE_READS | {"mamba_conv_bias", "mamba_proj_bias", "time_step_limit", "attention_bias"}
_IGNORES = TRAINING | {"mamba_chunk_size", "num_logits_to_keep", "z_loss_coefficient"}

GRANITE_HYBRID = Family(
    _read_granite,
    defaults=_SIZES
    | {"intermediate_size": 11008, "shared_intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2},
    aliases={"layers_block_type": "layer_types"},
    reads=_READS
    | {
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
        "position_embedding_type",
    },
    fixed={"norm_topk_prob": True},
    ignores=_IGNORES | {"normalization_function"},
    layer_kinds=_by_layer_types,
)
BAMBA = Family(
    _read_bamba,
    defaults=_SIZES | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "intermediate_size": 14336},
    reads=_READS | {"attn_layer_indices", "mlp_bias", "partial_rotary_factor"},
    ignores=_IGNORES,
    layer_kinds=_by_indices,
)
FALCON_H1 = Family(
    _read_falcon,
    defaults=_SIZES
    | {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "intermediate_size": 14336, "mamba_d_ssm": 1024},
    reads=_READS
    | {
        "mlp_bias", "projectors_bias", "mamba_rms_norm", "mamba_norm_before_gate", "embedding_multiplier",
        "lm_head_multiplier", "mlp_multipliers", "key_multiplier", "attention_in_multiplier",
        "attention_out_multiplier", "ssm_multipliers", "ssm_in_multiplier", "ssm_out_multiplier",
    },
    ignores=_IGNORES | {"mamba_use_mlp", "mlp_expansion_factor"},
    layer_kinds=_side_by_side,
)  # fmt: skip
