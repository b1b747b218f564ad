"""DeepSeek 2 and 3, models of their shape, and Kimi Linear: latent vectors in the cache."""

from lullm.config.field import Data
from lullm.config.gguf.experts import GROUPED, grouped
from lullm.config.gguf.hybrid import types_of
from lullm.config.gguf.keys import Architecture, Keys
from lullm.config.gguf.rope import rope_scaling

_SIGMOID = 2
_LOG_STEP = 0.1
"""In files of this architecture the multiplier of a stretched rope includes YaRN's factor of 0.1."""


def _sizes(keys: Keys) -> Data:
    """Sizes of latents and heads, the same for every router."""
    rotated = keys.need("rope.dimension_count")
    return {
        "num_key_value_heads": keys.need("attention.head_count"),
        "head_dim": rotated,
        "kv_lora_rank": keys.need("attention.kv_lora_rank"),
        "q_lora_rank": keys.number("attention.q_lora_rank"),
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": keys.need("attention.key_length_mla") - rotated,
        "v_head_dim": keys.need("attention.value_length_mla"),
        "n_group": keys.number("expert_group_count") or 1,
        "topk_group": keys.number("expert_group_used_count") or 1,
    }


def _deepseek2(keys: Keys) -> Data:
    """A sigmoid router means DeepSeek 3, another DeepSeek 2. Files without sizes of heads have another layout."""
    is_third = keys.get("expert_gating_func") == _SIGMOID
    scale = keys.number("rope.scaling.yarn_log_multiplier")
    mscale = {} if scale is None else {"mscale": scale / _LOG_STEP, "mscale_all_dim": scale / _LOG_STEP}
    data = {
        **grouped(keys, "DeepseekV3ForCausalLM", _SIGMOID if is_third else 1),
        **_sizes(keys),
        "rope_scaling": rope_scaling(keys, **mscale),
    }
    if is_third:
        return data
    if data.pop("norm_topk_prob"):
        raise keys.fault("expert_weights_norm with a softmax router is not supported for deepseek2")
    method = "greedy" if data["n_group"] == 1 else "group_limited_greedy"
    return {**data, "architectures": ["DeepseekV2ForCausalLM"], "topk_method": method}


def _kimi_linear(keys: Keys) -> Data:
    """Its files do not state that the shares of the chosen experts are normalized."""
    experts = grouped(keys, "KimiLinearForCausalLM")
    return {
        **experts,
        **_sizes(keys),
        "n_routed_experts": None,
        "num_experts": experts["n_routed_experts"],
        "norm_topk_prob": bool(keys.get("expert_weights_norm", True)),
        "layer_types": types_of(keys),
        "linear_num_heads": keys.need("attention.head_count"),
        "linear_head_dim": keys.need("kda.head_dim"),
        "linear_conv_kernel_dim": keys.need("ssm.conv_kernel"),
    }


LATENT: dict[str, Architecture] = {
    "deepseek2": Architecture(_deepseek2, GROUPED | {"attention.kv_lora_rank"}),
    "kimi-linear": Architecture(_kimi_linear, GROUPED | {"attention.kv_lora_rank"}, is_hybrid=True),
}
