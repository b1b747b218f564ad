"""Families with latent vectors in the cache: DeepSeek-V2 and V3, GLM-4.7-Flash; without experts MiniCPM3 and Youtu."""

import math
from dataclasses import replace

from lullm.config.decoder import DecoderConfig, LatentConfig
from lullm.config.family.dense import DENSE_READS, read_dense, without_stretch
from lullm.config.family.experts.reading import (
    TRAINING,
    behind_dense,
    layers_by_name,
    read_experts,
    read_grouped_experts,
    read_groups,
    read_shared,
    with_experts,
)
from lullm.config.family.family import Family
from lullm.config.family.granite import with_minicpm_factors
from lullm.config.family.layer_kinds import Kinds
from lullm.config.field import (
    MOST_HEAD_DIM,
    MOST_HEADS,
    Data,
    boolean,
    optional_object,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.layer.experts import ExpertsConfig
from lullm.config.rope import RopeConfig
from lullm.errors import ModelLoadError

_MOST_RANK = 1 << 14
"""The largest known has 1,536."""


def _sizes(data: Data) -> LatentConfig:
    query_rank = None if data.get("q_lora_rank") is None else positive_int(data, "q_lora_rank", most=_MOST_RANK)
    sizes = LatentConfig(
        rank=positive_int(data, "kv_lora_rank", 512, _MOST_RANK),
        rope_size=positive_int(data, "qk_rope_head_dim", 64, MOST_HEAD_DIM),
        plain_size=positive_int(data, "qk_nope_head_dim", most=MOST_HEAD_DIM),
        value_size=positive_int(data, "v_head_dim", most=MOST_HEAD_DIM),
        query_rank=query_rank,
        interleaves=boolean(data, "rope_interleave", True),
    )
    if sizes.rope_size % 2 or sizes.cached_size > MOST_HEAD_DIM:
        raise ModelLoadError(
            f"config.json: qk_rope_head_dim ({sizes.rope_size}) must be even, and kv_lora_rank + qk_rope_head_dim "
            f"({sizes.cached_size}) at most {MOST_HEAD_DIM}"
        )
    return sizes


def as_one_head(data: Data) -> Data:
    """The cache's view: one head per token. Raises ModelLoadError: keys are shared in another way."""
    heads, kv_heads = data.get("num_attention_heads"), data.get("num_key_value_heads")
    if kv_heads is not None and kv_heads != heads:
        raise ModelLoadError(
            f"config.json: num_key_value_heads {shown(kv_heads)} is not num_attention_heads ({shown(heads)}), and "
            "all heads have keys of their own where they follow from latents"
        )
    sizes = _sizes(data)
    if data.get("head_dim") not in (None, sizes.rope_size):
        raise ModelLoadError(
            f"config.json: head_dim {shown(data['head_dim'])} is not qk_rope_head_dim ({sizes.rope_size}), which is "
            "what it means for this architecture"
        )
    return {**data, "num_key_value_heads": 1, "head_dim": sizes.cached_size}


def read_latent(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    config, sizes = read_dense(data, kinds, head_dim), _sizes(data)
    rope = config.ropes[0]
    assert rope is not None, "read_dense has one rope for all layers"
    return replace(config, latent=sizes, attention_scale=_stretch(rope) * sizes.query_size**-0.5)


def _stretch(rope: RopeConfig) -> float:
    """The factor on scores of a stretched rope: YaRN's factor on all elements of queries and keys."""
    if rope.rope_type == "default" or not rope.mscale_all_dim or rope.factor <= 1:
        return 1.0
    return (0.1 * rope.mscale_all_dim * math.log(rope.factor) + 1.0) ** 2


def _v2_experts(data: Data) -> ExpertsConfig:
    experts = read_experts(data, "n_routed_experts", "moe_intermediate_size", behind_dense(data, 0))
    method = data.get("topk_method")
    if method not in ("greedy", "group_limited_greedy"):
        raise ModelLoadError(
            f"config.json: topk_method {shown(method)} is not supported, only 'greedy' and 'group_limited_greedy'"
        )
    num_groups = read_groups(data, experts) if method == "group_limited_greedy" else (1, 1)
    return replace(
        experts,
        normalizes=False,
        scale=positive_float(data, "routed_scaling_factor", 1.0),
        num_groups=num_groups[0],
        num_used_groups=num_groups[1],
        num_group_scores=1,
        shared_intermediate_size=read_shared(data, experts),
    )


def _read_mistral4(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """A softmax over groups, ranked as in DeepSeek-V3; queries grow with their position."""
    experts = read_grouped_experts(data, behind_dense(data, 0))
    experts = replace(experts, scoring="softmax", has_correction=False)
    data, stretch = without_stretch(data, theta=1e4, factor=128.0, trained_len=8192)
    sizes, name = _sizes(data), "partial_rotary_factor"
    for rope in (optional_object(data, "rope_scaling"), optional_object(data, "rope_parameters"), data):
        share = rope.pop(name, None)
        if share is not None and share != sizes.rope_size / sizes.query_size:
            raise ModelLoadError(
                f"config.json: {name} {shown(share)} is not the share of qk_rope_head_dim in a head "
                f"({sizes.rope_size} of {sizes.query_size})"
            )
    return replace(read_latent(data, kinds, head_dim), query_stretch=stretch, experts=experts)


def _mistral4_heads(data: Data) -> Data:
    """`head_dim` is the size of a query."""
    is_stated = data.get("head_dim") not in (None, _sizes(data).query_size)
    return as_one_head(data if is_stated else {**data, "head_dim": None})


def _read_minicpm3(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """Halves are rotated."""
    return with_minicpm_factors(read_latent({**data, "rope_interleave": False}, kinds, head_dim), data)


def _minicpm3_heads(data: Data) -> Data:
    """By default values have a head's part of a row."""
    heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    size = positive_int(data, "v_head_dim", positive_int(data, "hidden_size") // heads, MOST_HEAD_DIM)
    return as_one_head({**data, "v_head_dim": size, "rope_interleave": False})


_DENSE = DENSE_READS | {
    "attention_bias", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
}  # fmt: skip
_READS = _DENSE | {
    "n_routed_experts", "n_shared_experts", "num_experts_per_tok", "moe_intermediate_size", "routed_scaling_factor",
    "n_group", "topk_group",
}  # fmt: skip
_IGNORES = TRAINING | {
    "qk_head_dim", "ep_size", "aux_loss_alpha", "seq_aux", "num_mtp_layers", "num_nextn_predict_layers",
}  # fmt: skip
"""`qk_head_dim` follows from its parts. Layers behind the last one draft tokens; they are not loaded."""
_SIGMOID = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "moe_layer_freq": 1}

DEEPSEEK_V2 = Family(
    with_experts(read_latent, _v2_experts),
    defaults={
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_shared_experts": 2,
        "topk_method": "greedy", "n_routed_experts": 64, "moe_intermediate_size": 1407, "first_k_dense_replace": 0,
    },
    reads=_READS | {"topk_method", "first_k_dense_replace"},
    fixed={"scoring_func": "softmax", "moe_layer_freq": 1, "norm_topk_prob": False, "mlp_bias": False},
    ignores=_IGNORES,
    derive=as_one_head,
)  # fmt: skip
DEEPSEEK_V3 = Family(
    with_experts(read_latent, lambda data: read_grouped_experts(data, behind_dense(data, 3))),
    defaults={
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
        "n_routed_experts": 256, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "routed_scaling_factor": 2.5,
    },
    reads=_READS | {"norm_topk_prob", "first_k_dense_replace", "rope_interleave"},
    fixed=_SIGMOID,
    ignores=_IGNORES,
    derive=as_one_head,
)  # fmt: skip
AXK1 = Family(
    with_experts(read_latent, lambda data: read_grouped_experts(data, behind_dense(data, 1))),
    always={"has_post_norms": True},
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "n_group": 8, "topk_group": 4,
        "n_routed_experts": 192, "moe_intermediate_size": 2048, "num_experts_per_tok": 8, "routed_scaling_factor": 2.5,
    },
    reads=DEEPSEEK_V3.reads | {"mlp_layer_types"},
    fixed=DEEPSEEK_V3.fixed,
    ignores=_IGNORES,
    derive=as_one_head,
)  # fmt: skip
GLM4_MOE_LITE = Family(
    with_experts(read_latent, lambda data: read_grouped_experts(data, layers_by_name(data, 1))),
    aliases={"head_dim": "qk_rope_head_dim"},
    defaults={
        "q_lora_rank": 768, "qk_nope_head_dim": 192, "v_head_dim": 256, "n_routed_experts": 64,
        "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "routed_scaling_factor": 1.8, "rms_norm_eps": 1e-5,
    },
    reads=_READS | {"norm_topk_prob", "mlp_layer_types", "rope_interleave"},
    fixed=_SIGMOID | {"first_k_dense_replace": 1},
    ignores=_IGNORES,
    derive=as_one_head,
)  # fmt: skip
YOUTU = Family(
    read_latent,
    defaults={
        "q_lora_rank": 1536, "qk_nope_head_dim": 128, "v_head_dim": 128, "tie_word_embeddings": True,
    },
    reads=_DENSE | {"rope_interleave"},
    ignores={"qk_head_dim", "embedding_initializer_range"},
    derive=as_one_head,
)  # fmt: skip
MISTRAL4 = Family(
    _read_mistral4,
    aliases={"num_local_experts": "n_routed_experts"},
    defaults={
        "q_lora_rank": 1024, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 128,
        "moe_intermediate_size": 2048, "num_experts_per_tok": 4,
    },
    reads=_READS | {"norm_topk_prob", "first_k_dense_replace", "rope_interleave"},
    ignores=_IGNORES,
    derive=_mistral4_heads,
)  # fmt: skip
MINICPM3 = Family(
    _read_minicpm3,
    defaults={
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "kv_lora_rank": 256, "q_lora_rank": 768,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 256,
    },
    reads=_DENSE | {"mlp_bias"},
    ignores={"qk_head_dim"},
    derive=_minicpm3_heads,
)  # fmt: skip
