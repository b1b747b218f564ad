"""Nemotron-H: every layer has one kind: a state space, attention, an MLP, or experts."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import activation
from lullm.config.family.experts.reading import TRAINING, read_grouped_experts
from lullm.config.family.family import Family
from lullm.config.family.hybrid.reading import StateSpaceKeys, only_silu
from lullm.config.family.layer_kinds import FULL, LINEAR, Kinds, kinds_by_type
from lullm.config.field import (
    MOST_INTERMEDIATE,
    Data,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.experts import ExpertsConfig
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind, Nothing, RecurrentState

MLP, MOE = "mlp", "moe"
_STATE_SPACE = StateSpaceKeys(
    num_heads="mamba_num_heads",
    head_dim="mamba_head_dim",
    num_groups="n_groups",
    state_size="ssm_state_size",
    kernel_size="conv_kernel",
    bias="use_bias",
    convolution_bias="use_conv_bias",
    least_step="time_step_min",  # transformers bounds the step sizes by this, and not by `time_step_limit`
)
_BY_LETTER = {"M": LINEAR, "*": FULL, "-": MLP, "E": MOE}


def _derive(data: Data) -> Data:
    """The layers by their names; older files have a letter for each."""
    types, pattern = data.get("layer_types"), data.get("hybrid_override_pattern")
    if types is None and pattern is not None:
        if not isinstance(pattern, str) or not set(pattern) <= _BY_LETTER.keys():
            raise ModelLoadError(
                f"config.json: hybrid_override_pattern must have letters of {''.join(_BY_LETTER)}, not {shown(pattern)}"
            )
        types = [_BY_LETTER[letter] for letter in pattern]
    if types is None:
        types = [LINEAR, MOE, FULL, MLP]
    num_layers = len(types) if isinstance(types, list) else 0
    return {**data, "layer_types": types, "num_hidden_layers": num_layers or data.get("num_hidden_layers")}


def _layer_kinds(data: Data) -> Kinds:
    kinds: dict[str, LayerKind] = {MLP: Nothing(), MOE: Nothing()}
    return kinds_by_type(data, {LINEAR: RecurrentState(_STATE_SPACE.read(data).state_shapes), **kinds}, ())


def _experts(data: Data) -> ExpertsConfig | None:
    """Experts without gates and with DeepSeek-V3's router; None: no layer has any."""
    layers = tuple(name == MOE for name in data["layer_types"])
    if not any(layers):
        return None
    has_bias, latent_size = boolean(data, "mlp_bias", False), data.get("moe_latent_size")
    if latent_size is not None:
        latent_size = positive_int(data, "moe_latent_size", most=MOST_INTERMEDIATE)
        if has_bias:
            raise ModelLoadError("config.json: moe_latent_size and mlp_bias together are not supported")
    return replace(
        read_grouped_experts(data, layers),
        is_gated=False,
        latent_size=latent_size,
        has_shared_biases=has_bias,
        shared_intermediate_size=positive_int(data, "moe_shared_expert_intermediate_size", most=MOST_INTERMEDIATE),
    )


def _read(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    only_silu(data, "mamba_hidden_act")
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "layer_norm_epsilon", 1e-5),
        ropes=(None,) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "mlp_hidden_act"),
        mlp_bias=boolean(data, "mlp_bias", False),
        recurrent=_STATE_SPACE.read(data),
        experts=_experts(data),
    )


_ROPE = {"rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"}
"""No head is rotated."""

NEMOTRON_H = Family(
    _read,
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "mlp_hidden_act": "relu2",
        "mamba_hidden_act": "silu", "ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8,
        "conv_kernel": 4, "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 7688,
        "moe_shared_expert_intermediate_size": 7688,
    },
    aliases={
        "layers_block_type": "layer_types", "mamba_n_groups": "n_groups", "mamba_d_conv": "conv_kernel",
        "mamba_dt_min": "time_step_min", "mamba_conv_bias": "use_conv_bias", "num_local_experts": "n_routed_experts",
    },
    reads={
        "hybrid_override_pattern", "layer_norm_epsilon", "use_bias", "mlp_bias", "use_conv_bias", "time_step_min",
        "moe_latent_size", "routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob",
    },
    ignores=TRAINING
    | _ROPE
    | {
        "n_shared_experts", "moe_shared_expert_overlap",
        "num_logits_to_keep", "use_mamba_kernels", "expand", "mamba_expand", "time_step_max", "mamba_dt_max",
        "time_step_limit", "mamba_dt_limit", "time_step_floor", "mamba_dt_init_floor", "chunk_size", "mamba_chunk_size",
        "mamba_proj_bias", "mamba_ssm_cache_dtype", "num_nextn_predict_layers", "mtp_layers_block_type",
        "mtp_hybrid_override_pattern", "residual_in_fp32", "hidden_dropout", "rescale_prenorm_residual",
        # transformers ties no head here, whatever the file's value.
        "tie_word_embeddings",
        "sliding_window", "attention_bias", "rms_norm_eps", "time_step_rank", "norm_eps", "attention_head_dim",
    },
    layer_kinds=_layer_kinds,
    derive=_derive,
)  # fmt: skip
