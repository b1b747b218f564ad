"""Routers over each expert by itself: GLM-4.5, Solar Open, dots.llm1, MiniMax-M2, Trinity, Hunyuan 3."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig, OutputGate
from lullm.config.family.dense import read_dense, read_partial, ropes_where, rotated_share
from lullm.config.family.experts.reading import (
    READS,
    TRAINING,
    behind_dense,
    layers_by_name,
    read_experts,
    read_grouped_experts,
    read_shared,
    with_experts,
)
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_but_every, window_from
from lullm.config.field import MOST_LAYERS, Data, boolean, positive_float, positive_int
from lullm.types.layer_kind import SlidingWindow


def _read_glm4_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    return replace(
        read_partial(data, kinds, head_dim, default=0.5),
        experts=read_grouped_experts(data, behind_dense(data, 1)),
        qk_norm="heads" if boolean(data, "use_qk_norm", False) else None,
    )


def _read_solar(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Every layer has experts."""
    experts = read_grouped_experts(data)
    data = {**data, "intermediate_size": experts.intermediate_size}
    return replace(read_partial(data, kinds, head_dim, default=1.0), experts=experts)


def _read_minimax_m2(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_local_experts", "intermediate_size")
    experts = replace(experts, scoring="sigmoid", has_correction=True)
    return replace(read_partial(data, kinds, head_dim, default=rotated_share(data, head_dim)), experts=experts)


def _read_afmoe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Layers without a window do not rotate their heads."""
    layers = behind_dense(data, 1, "num_dense_layers")
    experts = read_experts(data, "num_experts", "moe_intermediate_size", layers)
    config = read_dense(data, kinds, head_dim)
    return replace(
        config,
        ropes=ropes_where([isinstance(kind, SlidingWindow) for kind in kinds], config),
        output_gate=OutputGate(is_apart=True),
        embedding_scale=positive_int(data, "hidden_size") ** 0.5 if boolean(data, "mup_enabled", False) else 1.0,
        scales_shown=True,
        experts=replace(
            experts,
            scoring="sigmoid",
            scale=positive_float(data, "route_scale", 1.0),
            has_correction=True,
            shared_intermediate_size=read_shared(data, experts, "num_shared_experts", 2),
        ),
    )


def _afmoe_kinds(data: Data) -> Kinds:
    return window_but_every(data, positive_int(data, "global_attn_every_n_layers", 4, MOST_LAYERS))


def _read_hy_v3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config = read_dense(data, kinds, head_dim)
    experts = read_experts(data, "num_experts", "moe_intermediate_size", layers_by_name(data, 1))
    return replace(
        config,
        experts=replace(
            experts,
            scoring="sigmoid",
            scale=positive_float(data, "router_scaling_factor", 1.0),
            has_correction=True,
            shared_intermediate_size=positive_int(data, "num_shared_experts", 1) * experts.intermediate_size,
            has_shared_biases=config.mlp_bias,
        ),
    )


_GROUPED = READS | {
    "attention_bias", "moe_intermediate_size", "n_routed_experts", "n_shared_experts", "routed_scaling_factor",
    "n_group", "topk_group", "first_k_dense_replace", "norm_topk_prob",
}  # fmt: skip
"""Keys of DeepSeek's router: groups of experts, shared experts, first dense layers."""

GLM4_MOE = Family(
    _read_glm4_moe,
    defaults={"rms_norm_eps": 1e-5},
    reads=_GROUPED | {"partial_rotary_factor", "use_qk_norm"},
    # Layers after the last draft tokens; they are not loaded.
    ignores=TRAINING | {"num_mtp_layers", "num_nextn_predict_layers"},
    always={"output_bias": False, "has_drafts": True},
)

SOLAR_OPEN = Family(
    _read_solar,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "head_dim": 128, "n_routed_experts": 128},
    aliases={"num_local_experts": "n_routed_experts"},
    reads=_GROUPED - {"first_k_dense_replace"} | {"partial_rotary_factor"},
    fixed={"use_qk_norm": False, "first_k_dense_replace": 0},
    ignores=TRAINING | {"intermediate_size", "num_mtp_layers", "num_nextn_predict_layers"},
    always={"output_bias": False, "has_drafts": True},
)
DOTS1 = Family(
    with_experts(read_dense, lambda data: read_grouped_experts(data, behind_dense(data, 0))),
    defaults={"sliding_window": 4096, "norm_topk_prob": False},
    reads=_GROUPED | {"sliding_window", "max_window_layers"},
    ignores=TRAINING,
    layer_kinds=window_from,
    always={"qk_norm": "heads"},
)

MINIMAX_M2 = Family(
    _read_minimax_m2,
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6, "num_experts_per_tok": 8,
        "num_local_experts": 256, "intermediate_size": 1536,
    },
    reads=READS | {"partial_rotary_factor", "rotary_dim"},
    fixed={
        "norm_topk_prob": True, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
        "qk_norm_type": "per_layer", "shared_intermediate_size": 0,
    },
    # Layers that draft tokens are not loaded.
    ignores=TRAINING | {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "attn_type_list"},
    always={"qk_norm": "rows", "has_drafts": True},
)  # fmt: skip
AFMOE = Family(
    _read_afmoe,
    defaults={
        "rms_norm_eps": 1e-5, "head_dim": 128, "num_experts": 64, "num_experts_per_tok": 6, "sliding_window": 1024,
        "moe_intermediate_size": 1408,
    },
    reads=READS
    | {
        "num_experts", "moe_intermediate_size", "num_dense_layers", "num_shared_experts", "route_scale", "mup_enabled",
        "global_attn_every_n_layers",
    },
    fixed={
        "attention_bias": False, "norm_topk_prob": True, "route_norm": True, "score_func": "sigmoid", "n_group": 1,
        "topk_group": 1, "num_expert_groups": 1, "num_limited_groups": 1,
    },
    ignores=TRAINING | {"load_balance_coeff", "use_grouped_mm"},
    layer_kinds=_afmoe_kinds,
)  # fmt: skip
HY_V3 = Family(
    _read_hy_v3,
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 11158840.0, "num_key_value_heads": 8, "head_dim": 128, "num_experts": 192,
        "num_experts_per_tok": 8, "num_shared_experts": 1, "moe_intermediate_size": 1536,
        "router_scaling_factor": 2.826, "intermediate_size": 13312,
    },
    reads=READS | {"attention_bias", "mlp_bias", "mlp_layer_types"},
    fixed={"norm_topk_prob": True},
    # In which type the shared expert is added; layers that draft tokens are not loaded.
    ignores=TRAINING | {"enable_moe_fp32_combine", "num_nextn_predict_layers"},
    always={"qk_norm": "heads", "has_drafts": True},
)  # fmt: skip
