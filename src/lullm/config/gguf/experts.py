"""Architectures of GGUF files with experts."""

from typing import Any

from lullm.config.field import Data
from lullm.config.gguf.dense import GRANITE_SCALES, granite_scales, plain
from lullm.config.gguf.keys import Architecture, Keys
from lullm.config.gguf.rope import head_dim, rope_scaling, rotated, turned_share, whole_heads
from lullm.config.gguf.window import layer_types

_SOFTMAX, _SIGMOID = 1, 2
"""Values of `expert_gating_func`."""
_QUERY_BIAS = "blk.0.attn_q.bias"


def _check_router(keys: Keys, scoring: int = _SOFTMAX, normalizes: bool = True) -> None:
    """Raises ModelLoadError: the file names another router than the architecture's. Most files name none."""
    stated: dict[str, tuple[Any, Any]] = {
        "expert_gating_func": (keys.get("expert_gating_func", 0) or scoring, scoring),
        "expert_weights_norm": (keys.get("expert_weights_norm", normalizes), normalizes),
    }
    for name, (value, own) in stated.items():
        if value != own:
            raise keys.fault(f"{name} {value!r:.40} is not supported for {keys.file.architecture}, only {own}")


def counts(keys: Keys, name: str, size_name: str | None = None, used_name: str = "num_experts_per_tok") -> Data:
    """The numbers of experts and of used ones, and the size of one, under these names of the config."""
    size = {} if size_name is None else {size_name: keys.need("expert_feed_forward_length")}
    return {name: keys.need("expert_count"), used_name: keys.need("expert_used_count"), **size}


def _llama(keys: Keys) -> Data:
    """Mixtral, if there are experts."""
    if not keys.get("expert_count"):
        bias = {"attention_bias": True} if keys.has(_QUERY_BIAS) else {}
        return {**plain("LlamaForCausalLM")(keys), **bias}
    _check_router(keys)
    return {**rotated(keys, "MixtralForCausalLM"), **counts(keys, "num_local_experts")}


def _qwen2_moe(keys: Keys) -> Data:
    """Older files have no size of an expert; all experts together have the size of the dense MLP."""
    _check_router(keys, normalizes=False)
    dense, num_used = keys.need("feed_forward_length"), keys.need("expert_used_count")
    return {
        **rotated(keys, "Qwen2MoeForCausalLM"),
        **counts(keys, "num_experts"),
        "moe_intermediate_size": keys.number("expert_feed_forward_length") or dense // num_used,
        "shared_expert_intermediate_size": keys.number("expert_shared_feed_forward_length") or dense,
        "norm_topk_prob": False,
        "qkv_bias": keys.has(_QUERY_BIAS),
    }


def _qwen3_moe(keys: Keys) -> Data:
    _check_router(keys)
    return {
        **rotated(keys, "Qwen3MoeForCausalLM"),
        **counts(keys, "num_experts", "moe_intermediate_size"),
        "norm_topk_prob": True,
    }


def _olmoe(keys: Keys) -> Data:
    _check_router(keys, normalizes=False)
    return {**rotated(keys, "OlmoeForCausalLM"), **counts(keys, "num_experts"), "norm_topk_prob": False}


def _granite_moe(keys: Keys) -> Data:
    _check_router(keys)
    shared = keys.number("expert_shared_feed_forward_length")
    name = "GraniteMoeForCausalLM" if shared is None else "GraniteMoeSharedForCausalLM"
    scales = {**counts(keys, "num_local_experts"), **granite_scales(keys), "shared_intermediate_size": shared}
    return {**rotated(keys, name), **scales, "attention_bias": True if keys.has(_QUERY_BIAS) else None}


def grouped(keys: Keys, architecture: str, scoring: int = _SIGMOID) -> Data:
    """DeepSeek's router: experts in groups, shared ones, and dense layers first."""
    _check_router(keys, scoring, bool(keys.get("expert_weights_norm")))
    return {
        **rotated(keys, architecture, is_whole=False),
        **counts(keys, "n_routed_experts", "moe_intermediate_size"),
        "n_shared_experts": keys.number("expert_shared_count"),
        "first_k_dense_replace": keys.get("leading_dense_block_count") or 0,
        "norm_topk_prob": bool(keys.get("expert_weights_norm")),
        "routed_scaling_factor": keys.number("expert_weights_scale"),
        "n_group": keys.number("expert_group_count"),
        "topk_group": keys.number("expert_group_used_count"),
    }


def _glm4_moe(keys: Keys) -> Data:
    return {
        **grouped(keys, "Glm4MoeForCausalLM"),
        "partial_rotary_factor": turned_share(keys),
        "attention_bias": keys.has(_QUERY_BIAS),
        "use_qk_norm": keys.has("blk.0.attn_q_norm.weight"),
    }


def _dots1(keys: Keys) -> Data:
    whole_heads(keys)
    types = {"layer_types": ["full_attention"] * keys.num_layers}
    return {**grouped(keys, "Dots1ForCausalLM"), **types, "attention_bias": keys.has(_QUERY_BIAS)}


def _exaone_moe(keys: Keys) -> Data:
    whole_heads(keys)
    windows = {"layer_types": layer_types(keys, 4), "sliding_window": keys.need("attention.sliding_window")}
    data = grouped(keys, "ExaoneMoeForCausalLM")
    data["num_experts"], data["num_shared_experts"] = data.pop("n_routed_experts"), data.pop("n_shared_experts")
    return {**data, **windows}


def _ernie4_5_moe(keys: Keys) -> Data:
    _check_router(keys)
    return {
        **rotated(keys, "Ernie4_5_MoeForCausalLM"),
        **counts(keys, "moe_num_experts", "moe_intermediate_size", "moe_k"),
        "moe_num_shared_experts": keys.get("expert_shared_count") or 0,
        "moe_layer_start_index": keys.get("leading_dense_block_count") or 0,
        "moe_layer_interval": keys.number("interleave_moe_layer_step"),
    }


def _minimax_m2(keys: Keys) -> Data:
    _check_router(keys, _SIGMOID)
    return {
        **rotated(keys, "MiniMaxM2ForCausalLM", is_whole=False),
        **counts(keys, "num_local_experts", "intermediate_size"),
        "rotary_dim": keys.number("rope.dimension_count") or head_dim(keys),
    }


def _gpt_oss(keys: Keys) -> Data:
    whole_heads(keys)
    return {
        "architectures": ["GptOssForCausalLM"],
        **counts(keys, "num_local_experts", "intermediate_size"),
        "sliding_window": keys.need("attention.sliding_window"),
        # A plain rope is stated, since a missing one means that of the released models.
        "rope_parameters": rope_scaling(keys, truncate=False) or {"rope_type": "default"},
    }


def _hunyuan_moe(keys: Keys) -> Data:
    """The stretched base frequency is stored. The shared expert is as wide as the others."""
    _check_router(keys)
    return {
        **rotated(keys, "HunYuanMoEV1ForCausalLM"),
        **counts(keys, "num_experts", "moe_intermediate_size", "moe_topk"),
        "num_shared_expert": keys.number("expert_shared_count"),
        "attention_bias": keys.has(_QUERY_BIAS),
    }


def _llama4(keys: Keys) -> Data:
    """The programs that run a file know the chunks, the growth of queries, and that Maverick's heads have no norms."""
    _check_router(keys, _SIGMOID, normalizes=False)
    if keys.get("attention.sliding_window") == 0:
        raise keys.fault("llama4 without chunks (attention.sliding_window 0) is not supported")
    return {
        **rotated(keys, "Llama4ForCausalLM"),
        **counts(keys, "num_local_experts", "intermediate_size"),
        "intermediate_size_mlp": keys.need("feed_forward_length"),
        "interleave_moe_layer_step": keys.need("interleave_moe_layer_step"),
        "use_qk_norm": keys.need("expert_count") != _MAVERICK_EXPERTS,
    }


_MAVERICK_EXPERTS = 128
GROUPED = frozenset({"expert_shared_count", "expert_weights_scale", "expert_group_count", "leading_dense_block_count"})
EXPERTS: dict[str, Architecture] = {
    "dots1": Architecture(_dots1, GROUPED),
    "ernie4_5-moe": Architecture(
        _ernie4_5_moe, {"expert_shared_count", "leading_dense_block_count", "interleave_moe_layer_step"}
    ),
    "exaone-moe": Architecture(_exaone_moe, GROUPED),
    "glm4moe": Architecture(_glm4_moe, GROUPED),
    "gpt-oss": Architecture(_gpt_oss),
    "granitemoe": Architecture(_granite_moe, GRANITE_SCALES),
    "llama": Architecture(_llama),
    "hunyuan-moe": Architecture(_hunyuan_moe, {"expert_shared_count"}),
    "llama4": Architecture(_llama4, {"interleave_moe_layer_step"}),
    "minimax-m2": Architecture(_minimax_m2),
    "olmoe": Architecture(_olmoe),
    "qwen2moe": Architecture(_qwen2_moe),
    "qwen3moe": Architecture(_qwen3_moe),
    "qwen3vlmoe": Architecture(_qwen3_moe),
}
