"""Families with a mixture of experts: Mixtral, Qwen2 and 3 MoE, OLMoE, GLM-4.5, dots.llm1, MiniMax-M2, ERNIE,
Granite, gpt-oss."""

from dataclasses import replace
from functools import partial
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.experts import ClampedGate, ExpertsConfig
from lullm.config.family.dense import DENSE_READS, NO_WINDOW, UNUSED_WINDOW, read_dense, read_partial
from lullm.config.family.family import Family
from lullm.config.family.granite import GRANITE_FACTORS, read_granite
from lullm.config.family.layer_kinds import (
    num_layers,
    window_but_every,
    window_from,
    window_if_switched_on_for_all,
    window_in_odd,
    window_unless_null,
)
from lullm.config.field import (
    MOST_EXPERTS,
    MOST_HEAD_DIM,
    MOST_INTERMEDIATE,
    boolean,
    integer,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.rope import ROPE_KEYS
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind


def read_experts(data: dict[str, Any], count_name: str, size_name: str, layers: tuple[bool, ...]) -> ExpertsConfig:
    """What all families have."""
    num_experts = positive_int(data, count_name, most=MOST_EXPERTS)
    num_used = positive_int(data, "num_experts_per_tok", most=MOST_EXPERTS)
    if num_used > num_experts:
        raise ModelLoadError(
            f"config.json: num_experts_per_tok ({num_used}) must be at most {count_name} ({num_experts})"
        )
    size = positive_int(data, size_name, most=MOST_INTERMEDIATE)
    return ExpertsConfig(num_experts, num_used, size, layers, normalizes=boolean(data, "norm_topk_prob", True))


def sparse_layers(data: dict[str, Any]) -> tuple[bool, ...]:
    """Of Qwen: every `decoder_sparse_step`-th layer, but those in `mlp_only_layers`."""
    step, dense = positive_int(data, "decoder_sparse_step", 1), data.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise ModelLoadError(f"config.json: mlp_only_layers must be a list of layers, not {shown(dense)}")
    return tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(num_layers(data)))


def layers_by_name(data: dict[str, Any], num_dense: int) -> tuple[bool, ...]:
    """By `mlp_layer_types`, whether a layer has experts; without them the first `num_dense` have none."""
    count, stated = num_layers(data), data.get("mlp_layer_types")
    types = ["dense" if layer < num_dense else "sparse" for layer in range(count)] if stated is None else stated
    if not isinstance(types, list) or len(types) != count or not all(kind in ("dense", "sparse") for kind in types):
        raise ModelLoadError(
            f"config.json: mlp_layer_types must name dense or sparse for each of {count} layers, not {shown(stated)}"
        )
    return tuple(kind == "sparse" for kind in types)


def _read_mixtral(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_local_experts", "intermediate_size", (True,) * len(kinds))
    return replace(read_dense(data, kinds, head_dim), experts=experts)


def _read_qwen2_moe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = replace(
        read_experts(data, "num_experts", "moe_intermediate_size", sparse_layers(data)),
        shared_intermediate_size=positive_int(data, "shared_expert_intermediate_size", most=MOST_INTERMEDIATE),
        shared_is_gated=True,
    )
    config = read_dense(data, kinds, head_dim)
    return replace(config, experts=experts, attention_bias=boolean(data, "qkv_bias", True))


def _read_qwen3_moe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    name = "num_experts" if data.get("num_experts") is not None else "num_local_experts"
    experts = read_experts(data, name, "moe_intermediate_size", sparse_layers(data))
    return replace(read_dense(data, kinds, head_dim), experts=experts)


def _read_olmoe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_experts", "intermediate_size", (True,) * len(kinds))
    return replace(read_dense(data, kinds, head_dim), experts=experts)


def read_groups(data: dict[str, Any], experts: ExpertsConfig) -> tuple[int, int]:
    """How many groups there are, and how many are used."""
    num_groups, num_used_groups = positive_int(data, "n_group", 1), positive_int(data, "topk_group", 1)
    group_size, rest = divmod(experts.num_experts, num_groups)
    if rest or group_size < 2 or num_used_groups > num_groups or experts.num_used > num_used_groups * group_size:
        raise ModelLoadError(
            f"config.json: n_group ({num_groups}) must part n_routed_experts ({experts.num_experts}) into groups of 2 "
            f"or more, of which topk_group ({num_used_groups}) hold num_experts_per_tok ({experts.num_used})"
        )
    return num_groups, num_used_groups


def read_shared(data: dict[str, Any], experts: ExpertsConfig) -> int | None:
    """The size of the shared experts together."""
    num_shared = integer(data, "n_shared_experts", 1)
    return num_shared * experts.intermediate_size if num_shared > 0 else None


def read_grouped_experts(data: dict[str, Any], layers: tuple[bool, ...]) -> ExpertsConfig:
    """Of DeepSeek-V3, and of GLM-4.5 after it: sigmoids that are corrected for the choice."""
    experts = read_experts(data, "n_routed_experts", "moe_intermediate_size", layers)
    num_groups, num_used_groups = read_groups(data, experts)
    return replace(
        experts,
        scoring="sigmoid",
        scale=positive_float(data, "routed_scaling_factor", 1.0),
        num_groups=num_groups,
        num_used_groups=num_used_groups,
        has_correction=True,
        shared_intermediate_size=read_shared(data, experts),
    )


def _read_glm4_moe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    first = integer(data, "first_k_dense_replace", 1)
    experts = read_grouped_experts(data, tuple(layer >= first for layer in range(len(kinds))))
    return replace(
        read_partial(data, kinds, head_dim, default=0.5),
        experts=experts,
        has_head_norms=boolean(data, "use_qk_norm", False),
    )


def _read_solar(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    """No layer has an MLP alone."""
    experts = read_grouped_experts(data, (True,) * len(kinds))
    data = {**data, "intermediate_size": experts.intermediate_size}
    return replace(read_partial(data, kinds, head_dim, default=1.0), experts=experts)


def _read_dots1(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    first = integer(data, "first_k_dense_replace", 0)
    experts = read_grouped_experts(data, tuple(layer >= first for layer in range(len(kinds))))
    return replace(read_dense(data, kinds, head_dim), experts=experts, has_head_norms=True)


def _read_minimax_m2(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_local_experts", "intermediate_size", (True,) * len(kinds))
    experts = replace(experts, scoring="sigmoid", has_correction=True)
    return replace(read_partial(data, kinds, head_dim, default=rotated_share(data, head_dim)), experts=experts)


def rotated_share(data: dict[str, Any], head_dim: int) -> float:
    """The share of a head that `rotary_dim` says; 1 where it says nothing. Raises ModelLoadError."""
    turned = positive_int(data, "rotary_dim", head_dim, MOST_HEAD_DIM)
    if turned > head_dim:
        raise ModelLoadError(f"config.json: rotary_dim ({turned}) must be at most the size of a head ({head_dim})")
    return 1.0 if turned == head_dim else (turned + 1e-6) / head_dim  # of the product the whole part counts


def _read_ernie4_5_moe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    first, interval = integer(data, "moe_layer_start_index", 1), positive_int(data, "moe_layer_interval", 1)
    last = integer(data, "moe_layer_end_index", -1)
    last = len(kinds) - 1 if last == -1 else last
    layers = tuple((layer + 1) % interval == 0 and first <= layer <= last for layer in range(len(kinds)))
    experts = read_experts(data, "moe_num_experts", "moe_intermediate_size", layers)
    num_shared = integer(data, "moe_num_shared_experts", 2)
    shared_size = num_shared * experts.intermediate_size if num_shared > 0 else None
    experts = replace(experts, has_correction=True, shared_intermediate_size=shared_size)
    return replace(read_dense(data, kinds, head_dim), experts=experts)


def _read_granite_moe(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_local_experts", "intermediate_size", (True,) * len(kinds))
    shared_size = integer(data, "shared_intermediate_size", 0)
    if not 0 <= shared_size <= MOST_INTERMEDIATE:
        raise ModelLoadError(f"config.json: shared_intermediate_size must be 0 to {MOST_INTERMEDIATE}")
    experts = replace(experts, shared_intermediate_size=shared_size or None)
    return replace(read_granite(data, kinds, head_dim), experts=experts)


TRAINING = frozenset({"router_aux_loss_coef", "output_router_logits", "router_jitter_noise"})
_READS = DENSE_READS | {"num_experts_per_tok"}
_QWEN = _READS | {
    "num_experts",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "use_sliding_window",
    "sliding_window",
}
_GROUPED = _READS | {
    "attention_bias", "moe_intermediate_size", "n_routed_experts", "n_shared_experts", "routed_scaling_factor",
    "n_group", "topk_group", "first_k_dense_replace", "norm_topk_prob",
}  # fmt: skip
"""Of DeepSeek's router: experts in groups, shared ones, and dense layers first."""
_TO_MANY = {"norm_topk_prob": False}

MIXTRAL = Family(
    _read_mixtral,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2, "num_local_experts": 8},
    reads=_READS | {"num_local_experts", "sliding_window"},
    fixed={"norm_topk_prob": True},
    ignores=TRAINING,
    layer_kinds=window_unless_null,
)
QWEN2_MOE = Family(
    _read_qwen2_moe,
    defaults=_TO_MANY | {"sliding_window": 4096},
    reads=_QWEN | {"shared_expert_intermediate_size", "qkv_bias", "max_window_layers"},
    ignores=TRAINING,
    layer_kinds=window_in_odd,
)
QWEN3_MOE = Family(
    _read_qwen3_moe,
    defaults=_TO_MANY | {"sliding_window": 4096},
    reads=_QWEN | {"attention_bias", "num_local_experts"},
    ignores=TRAINING | {"max_window_layers"},
    layer_kinds=window_if_switched_on_for_all,
)
OLMOE = Family(
    _read_olmoe,
    defaults=_TO_MANY | {"rms_norm_eps": 1e-5},
    reads=_READS | {"num_experts", "norm_topk_prob", "attention_bias"},
    fixed=NO_WINDOW | {"clip_qkv": None},
    ignores=TRAINING | UNUSED_WINDOW,
)
FLEX_OLMO = Family(
    _read_olmoe,
    defaults={"num_experts": 7, "num_experts_per_tok": 5, "norm_topk_prob": False, "rope_theta": 500000.0},
    aliases={"num_local_experts": "num_experts"},
    reads=DENSE_READS | {"attention_bias"},
    fixed=NO_WINDOW,
    ignores=TRAINING | UNUSED_WINDOW,
)
GLM4_MOE = Family(
    _read_glm4_moe,
    defaults={"rms_norm_eps": 1e-5},
    reads=_GROUPED | {"partial_rotary_factor", "use_qk_norm"},
    fixed=NO_WINDOW,
    # Layers behind the last one draft tokens; they are not loaded.
    ignores=TRAINING | UNUSED_WINDOW | {"num_mtp_layers", "num_nextn_predict_layers"},
)

SOLAR_OPEN = Family(
    _read_solar,
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "head_dim": 128, "n_routed_experts": 128},
    aliases={"num_local_experts": "n_routed_experts"},
    reads=_GROUPED - {"first_k_dense_replace"} | {"partial_rotary_factor"},
    fixed=NO_WINDOW | {"use_qk_norm": False, "first_k_dense_replace": 0},
    ignores=TRAINING | UNUSED_WINDOW | {"intermediate_size", "num_mtp_layers", "num_nextn_predict_layers"},
)
DOTS1 = Family(
    _read_dots1,
    defaults={"sliding_window": 4096, "norm_topk_prob": False},
    reads=_GROUPED | {"sliding_window", "max_window_layers"},
    ignores=TRAINING,
    layer_kinds=window_from,
)

MINIMAX_M2 = Family(
    _read_minimax_m2,
    aliases={"num_experts": "num_local_experts"},
    defaults={
        "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 5e6, "num_experts_per_tok": 8,
        "num_local_experts": 256, "intermediate_size": 1536,
    },
    reads=_READS | {"partial_rotary_factor", "rotary_dim"},
    fixed=NO_WINDOW
    | {
        "norm_topk_prob": True, "scoring_func": "sigmoid", "use_routing_bias": True, "use_qk_norm": True,
        "qk_norm_type": "per_layer", "shared_intermediate_size": 0,
    },
    # Layers that draft tokens are not loaded.
    ignores=TRAINING | UNUSED_WINDOW | {"use_mtp", "num_mtp_modules", "mtp_transformer_layers", "attn_type_list"},
)  # fmt: skip
ERNIE4_5_MOE = Family(
    _read_ernie4_5_moe,
    aliases={"moe_k": "num_experts_per_tok", "num_experts": "moe_num_experts"},
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "num_key_value_heads": 4,
        "moe_k": 6, "moe_num_experts": 64, "moe_intermediate_size": 1536,
    },
    reads=_READS
    | {
        "moe_num_shared_experts", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval",
    },
    fixed=NO_WINDOW | {"use_bias": False, "moe_norm_min": 1e-12, "norm_topk_prob": True},
    ignores=TRAINING | UNUSED_WINDOW,
)  # fmt: skip
GRANITE_MOE = Family(
    _read_granite_moe,
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    reads=_READS | GRANITE_FACTORS | {"attention_bias", "shared_intermediate_size"},
    fixed=NO_WINDOW | {"norm_topk_prob": True},
    ignores=TRAINING | UNUSED_WINDOW,
)

_OSS_ROPE = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
"""transformers' where a file has none."""


def _read_gpt_oss(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    experts = replace(
        read_experts(data, "num_local_experts", "intermediate_size", (True,) * len(kinds)),
        has_biases=True,
        clamped_gate=ClampedGate(
            alpha=positive_float(data, "swiglu_alpha", 1.702), limit=positive_float(data, "swiglu_limit", 7.0)
        ),
    )
    rope = _OSS_ROPE if data.get("rope_parameters") is None else data["rope_parameters"]
    config = read_dense({**data, "rope_parameters": rope}, kinds, head_dim)
    return replace(config, experts=experts, has_sinks=True)


GPT_OSS = Family(
    _read_gpt_oss,
    defaults={
        "rms_norm_eps": 1e-5,
        "rope_theta": 150000.0,
        "sliding_window": 128,
        "head_dim": 64,
        "num_local_experts": 128,
        "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702,
        "swiglu_limit": 7.0,
        "attention_bias": True,
    },
    reads=ROPE_KEYS | {"intermediate_size"},
    fixed={"norm_topk_prob": True},
    # `hidden_act` is not what the experts compute. The last two repeat other keys in the files of the first release.
    ignores=TRAINING | {"hidden_act", "experts_per_token", "initial_context_length"},
    layer_kinds=partial(window_but_every, interval=2),
    encodings=frozenset({"mxfp4"}),
)
