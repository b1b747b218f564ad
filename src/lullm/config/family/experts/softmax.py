"""Routers over all experts together: Mixtral, Qwen2 and 3 MoE, Mellum, OLMoE, ERNIE, Granite."""

from dataclasses import replace

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, read_dense, ropes_of
from lullm.config.family.experts.reading import (
    READS,
    TRAINING,
    layers_by_name,
    read_experts,
    read_shared,
    sparse_layers,
    with_experts,
)
from lullm.config.family.family import NO_WINDOW, Family
from lullm.config.family.granite import GRANITE_FACTORS, SWA_READS, read_granite, swa_kinds, with_sinks
from lullm.config.family.layer_kinds import (
    Kinds,
    full_where_not_named,
    window_if_switched_on_for_all,
    window_in_odd,
    window_unless_null,
)
from lullm.config.field import MOST_INTERMEDIATE, Data, boolean, integer, positive_int
from lullm.config.layer.experts import ExpertsConfig
from lullm.config.rope import read_ropes_by_kind
from lullm.errors import ModelLoadError


def _read_qwen2_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = replace(
        read_experts(data, "num_experts", "moe_intermediate_size", sparse_layers(data)),
        shared_intermediate_size=positive_int(data, "shared_expert_intermediate_size", most=MOST_INTERMEDIATE),
        shared_is_gated=True,
    )
    config = read_dense(data, kinds, head_dim)
    return replace(config, experts=experts, attention_bias=boolean(data, "qkv_bias", True))


def _qwen3_experts(data: Data) -> ExpertsConfig:
    name = "num_experts" if data.get("num_experts") is not None else "num_local_experts"
    return read_experts(data, name, "moe_intermediate_size", sparse_layers(data))


def _read_mellum(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """As Qwen3 MoE, with a rope per kind of layer."""
    experts = read_experts(data, "num_experts", "moe_intermediate_size", layers_by_name(data, 0))
    ropes = ropes_of(kinds, *read_ropes_by_kind(data, 5e5, 1e4))
    plain = {**data, "rope_parameters": None}
    return replace(read_dense(plain, kinds, head_dim), ropes=ropes, experts=experts)


def _read_ernie4_5_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    first, interval = integer(data, "moe_layer_start_index", 1), positive_int(data, "moe_layer_interval", 1)
    last = integer(data, "moe_layer_end_index", -1)
    last = len(kinds) - 1 if last == -1 else last
    layers = tuple((layer + 1) % interval == 0 and first <= layer <= last for layer in range(len(kinds)))
    experts = read_experts(data, "moe_num_experts", "moe_intermediate_size", layers)
    shared_size = read_shared(data, experts, "moe_num_shared_experts", 2)
    experts = replace(experts, has_correction=True, shared_intermediate_size=shared_size)
    return replace(read_dense(data, kinds, head_dim), experts=experts)


def _read_granite_moe(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    experts = read_experts(data, "num_local_experts", "intermediate_size")
    shared_size = integer(data, "shared_intermediate_size", 0)
    if not 0 <= shared_size <= MOST_INTERMEDIATE:
        raise ModelLoadError(f"config.json: shared_intermediate_size must be 0 to {MOST_INTERMEDIATE}")
    experts = replace(experts, shared_intermediate_size=shared_size or None)
    return replace(read_granite(data, kinds, head_dim), experts=experts)


_QWEN = READS | {
    "num_experts", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step", "mlp_only_layers",
    "use_sliding_window", "sliding_window",
}  # fmt: skip
_TO_MANY = {"norm_topk_prob": False}

MIXTRAL = Family(
    with_experts(read_dense, lambda data: read_experts(data, "num_local_experts", "intermediate_size")),
    defaults={"rms_norm_eps": 1e-5, "rope_theta": 1e6, "num_experts_per_tok": 2, "num_local_experts": 8},
    reads=READS | {"num_local_experts", "sliding_window"},
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
    always={"output_bias": False},
)
QWEN3_MOE = Family(
    with_experts(read_dense, _qwen3_experts),
    defaults=_TO_MANY | {"sliding_window": 4096},
    reads=_QWEN | {"attention_bias", "num_local_experts"},
    ignores=TRAINING | {"max_window_layers"},
    layer_kinds=window_if_switched_on_for_all,
)
MELLUM = Family(
    _read_mellum,
    aliases={"num_local_experts": "num_experts"},
    defaults={
        "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 1024, "intermediate_size": 7168,
        "num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 896, "norm_topk_prob": True,
    },
    reads={"rms_norm_eps", "hidden_act", "attention_bias", "mlp_layer_types", "rope_parameters"},
    fixed=NO_WINDOW,
    # Layers that draft tokens are not loaded.
    ignores=TRAINING | {"num_mtp_layers", "num_nextn_predict_layers", "mtp_layer_types", "mtp_mlp_layer_types"}
    | {"max_window_layers"},
    layer_kinds=full_where_not_named,
)  # fmt: skip
OLMOE = Family(
    with_experts(read_dense, lambda data: read_experts(data, "num_experts", "intermediate_size")),
    defaults=_TO_MANY | {"rms_norm_eps": 1e-5},
    reads=READS | {"num_experts", "norm_topk_prob", "attention_bias"},
    fixed={"clip_qkv": None},
    ignores=TRAINING,
    always={"qk_norm": "rows"},
)
FLEX_OLMO = Family(
    OLMOE.read,
    defaults={"num_experts": 7, "num_experts_per_tok": 5, "norm_topk_prob": False, "rope_theta": 500000.0},
    aliases={"num_local_experts": "num_experts"},
    reads=DENSE_READS | {"attention_bias"},
    ignores=TRAINING,
)
ERNIE4_5_MOE = Family(
    _read_ernie4_5_moe,
    aliases={"moe_k": "num_experts_per_tok", "num_experts": "moe_num_experts"},
    defaults={
        "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": True, "num_key_value_heads": 4,
        "moe_k": 6, "moe_num_experts": 64, "moe_intermediate_size": 1536,
    },
    reads=READS
    | {
        "moe_num_shared_experts", "moe_layer_start_index", "moe_layer_end_index", "moe_layer_interval",
    },
    fixed={"use_bias": False, "moe_norm_min": 1e-12, "norm_topk_prob": True},
    ignores=TRAINING,
)  # fmt: skip
GRANITE_MOE = Family(
    _read_granite_moe,
    defaults={"num_local_experts": 8, "num_experts_per_tok": 2},
    reads=READS | GRANITE_FACTORS | {"attention_bias", "shared_intermediate_size"},
    fixed={"norm_topk_prob": True},
    ignores=TRAINING,
)
GRANITE_MOE_SWA = Family(
    lambda data, kinds, head_dim: with_sinks(_read_granite_moe(data, kinds, head_dim), data),
    defaults={**GRANITE_MOE.defaults, "sliding_window": 128},
    reads=GRANITE_MOE.reads | SWA_READS,
    fixed={"norm_topk_prob": True},
    ignores=TRAINING,
    layer_kinds=swa_kinds,
)
