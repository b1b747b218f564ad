"""Architectures of GGUF files whose layers are of several kinds."""

from array import array

from lullm.config.gguf.keys import Architecture, Data, Keys
from lullm.config.gguf.rope import rope_scaling, whole_heads


def _attends(keys: Keys) -> list[bool]:
    """By layer, whether it has attention: the others have no heads of keys."""
    heads = keys.get("attention.head_count_kv")
    if not isinstance(heads, array) or len(heads) < keys.num_layers:
        raise keys.fault("attention.head_count_kv must be a list of the heads of each layer")
    return [bool(count) for count in heads[: keys.num_layers]]


def _lfm2(keys: Keys) -> Data:
    whole_heads(keys)
    attends = _attends(keys)
    convolution = next((layer for layer, has_heads in enumerate(attends) if not has_heads), 0)
    return {
        "architectures": ["Lfm2ForCausalLM"],
        "rope_scaling": rope_scaling(keys),
        "layer_types": ["full_attention" if has_heads else "conv" for has_heads in attends],
        "conv_L_cache": keys.need("shortconv.l_cache"),
        "conv_bias": keys.has(f"blk.{convolution}.shortconv.in_proj.bias"),
        "norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rms_norm_eps": None,
        "block_auto_adjust_ff_dim": False,
    }


def _lfm2_moe(keys: Keys) -> Data:
    scoring = keys.get("expert_gating_func", 2)
    if scoring != 2:
        raise keys.fault(f"expert_gating_func {scoring!r:.40} is not supported for lfm2moe, only 2 (sigmoid)")
    num_dense = keys.get("leading_dense_block_count") or 0
    data = _lfm2(keys)
    del data["block_auto_adjust_ff_dim"]
    return {
        **data,
        "architectures": ["Lfm2MoeForCausalLM"],
        "num_dense_layers": num_dense,
        "num_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "moe_intermediate_size": keys.need("expert_feed_forward_length"),
        "use_expert_bias": keys.has(f"blk.{num_dense}.exp_probs_b.bias"),
        "norm_topk_prob": True,
    }


HYBRID: dict[str, Architecture] = {
    "lfm2": Architecture(_lfm2, is_hybrid=True),
    "lfm2moe": Architecture(_lfm2_moe, {"leading_dense_block_count"}, is_hybrid=True),
}
