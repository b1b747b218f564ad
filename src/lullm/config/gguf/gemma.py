"""Gemma 2, 3, 3n and 4. The programs that run a file know its window layers and the divisor of its scores."""

from array import array
from statistics import NormalDist
from typing import Any

from lullm.config.field import Data
from lullm.config.gguf.experts import counts
from lullm.config.gguf.keys import Architecture, Keys, short
from lullm.config.gguf.rope import rotated, theta
from lullm.config.gguf.window import FULL, layer_types

_SECOND_LARGEST, _THIRD_LARGEST = 46, 62
"""Layers of Gemma 2 27B and of Gemma 3 27B. They divide scores by the root of hidden_size / heads."""


def _gemma(keys: Keys, architecture: str, layers_of_largest: int) -> Data:
    head_dim = keys.need("attention.key_length")
    is_largest = keys.need("block_count") == layers_of_largest
    scalar = keys.need("embedding_length") / keys.need("attention.head_count") if is_largest else head_dim
    return {
        **rotated(keys, architecture),
        "sliding_window": keys.need("attention.sliding_window"),
        "query_pre_attn_scalar": scalar,
    }


def _gemma2(keys: Keys) -> Data:
    """A file without the caps means those of the released models."""
    caps = {name: keys.number(name) for name in ("attn_logit_softcapping", "final_logit_softcapping")}
    stated = {name: cap for name, cap in caps.items() if cap is not None}
    return _gemma(keys, "Gemma2ForCausalLM", _SECOND_LARGEST) | stated


def _gemma3(keys: Keys) -> Data:
    data = _gemma(keys, "Gemma3ForCausalLM", _THIRD_LARGEST)
    local = keys.number("rope.freq_base_swa")
    data["rope_local_base_freq"] = None if local is None else short(local)
    data["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    pattern = keys.get("attention.sliding_window_pattern")
    data["sliding_window_pattern"] = pattern if isinstance(pattern, int) else None
    return data


def _gemma_embedding(keys: Keys) -> Data:
    """A token sees those behind it, too. Windows are stated as in a folder, half of them to each side."""
    return {**_gemma3(keys), "architectures": ["Gemma3TextModel"], "use_bidirectional_attention": True}


def _gemma3n(keys: Keys) -> Data:
    """A file cuts gates at a number of deviations above the mean, a config cuts a share of them: 0 is -infinity."""
    cutoffs, embedding = keys.get("activation_sparsity_scale"), keys.file.tensors.get("per_layer_token_embd.weight")
    if not isinstance(cutoffs, array) or not all(cutoff < _MOST_DEVIATIONS for cutoff in cutoffs):
        raise keys.fault("activation_sparsity_scale must be a list of deviations, one for each layer")
    if not keys.has(_LEARNED) or embedding is None:
        raise keys.fault(f"one of the tensors {_LEARNED} and per_layer_token_embd.weight is missing")
    return {
        **rotated(keys, "Gemma3nForCausalLM"),
        "num_key_value_heads": keys.need("attention.head_count_kv"),
        "intermediate_size": _by_layer(keys, "feed_forward_length"),
        "layer_types": layer_types(keys, 5),
        "sliding_window": keys.need("attention.sliding_window"),
        "num_kv_shared_layers": keys.get("attention.shared_kv_layers") or 0,
        "hidden_size_per_layer_input": keys.need("embedding_length_per_layer_input"),
        "vocab_size_per_layer_input": embedding.shape[0],
        "activation_sparsity_pattern": [NormalDist().cdf(cutoff) for cutoff in cutoffs],
        "altup_num_inputs": keys.need("altup.num_inputs"),
        "altup_active_idx": keys.get("altup.active_idx") or 0,
        "altup_correct_scale": keys.has("blk.0.altup_correct_scale.weight"),
        "laurel_rank": keys.file.tensors[_LEARNED].shape[0],
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "rope_local_base_freq": theta(keys, "rope.freq_base_swa"),
    }


_MOST_DEVIATIONS = 8.0
"""A larger number would cut all gates."""
_LEARNED = "blk.0.laurel_l.weight"


def _gemma4(keys: Keys) -> Data:
    """Layers with full attention have wider heads, perhaps fewer of them. Their values may be their keys."""
    types = layer_types(keys, 6)
    narrow, wide = keys.need("attention.key_length_swa"), keys.need("attention.key_length")
    full = [layer for layer, kind in enumerate(types) if kind == FULL]
    kv_heads, sizes = _by_layer(keys, "attention.head_count_kv"), _by_layer(keys, "feed_forward_length")
    usual = next((heads for heads, kind in zip(kv_heads, types, strict=True) if kind != FULL), kv_heads[0])
    num_shared = keys.get("attention.shared_kv_layers") or 0
    is_wide = sizes[-1] == 2 * sizes[0]
    expected = [sizes[0] * (1 + (is_wide and layer >= keys.num_layers - num_shared)) for layer in range(len(sizes))]
    if sizes != expected:
        raise keys.fault("feed_forward_length differs from layer to layer, which is not supported")
    embedding = keys.file.tensors.get("per_layer_token_embd.weight")
    return {
        "architectures": ["Gemma4ForCausalLM"],
        "head_dim": narrow,
        "num_key_value_heads": usual,
        "per_layer_config": {str(n): {"head_dim": wide, "num_key_value_heads": kv_heads[n]} for n in full},
        "layer_types": types,
        "sliding_window": keys.need("attention.sliding_window"),
        "num_kv_shared_layers": num_shared,
        "intermediate_size": sizes[0],
        "use_double_wide_mlp": is_wide,
        "attention_k_eq_v": bool(full) and not keys.has(f"blk.{full[0]}.attn_v.weight"),
        "attention_bias": keys.has("blk.0.attn_q.bias"),
        "hidden_size_per_layer_input": keys.get("embedding_length_per_layer_input") or 0,
        "vocab_size_per_layer_input": None if embedding is None else embedding.shape[0],
        "final_logit_softcapping": keys.number("final_logit_softcapping"),
        "rope_theta": None,
        "rope_parameters": _gemma4_ropes(keys, narrow),
        **_gemma4_experts(keys),
    }


def _gemma4_experts(keys: Keys) -> Data:
    if not keys.get("expert_count"):
        return {}
    return {"enable_moe_block": True, **counts(keys, "num_experts", "moe_intermediate_size", "top_k_experts")}


def _gemma4_ropes(keys: Keys, narrow: int) -> Data:
    """Pairs of wide heads that are not rotated come last, with a factor that stops them."""
    factors = keys.floats("rope_freqs.weight")
    turning = [factor for factor in factors or () if factor < _STOPPED]
    is_known = factors is not None and factors[: len(turning)] == [1.0] * len(turning) and turning
    if not is_known or keys.get("rope.scaling.type", "none") != "none":
        raise keys.fault(
            "rope_freqs.weight must hold 1 for the first pairs and 1e30 for others, without another stretch"
        )
    assert factors is not None
    if keys.number("rope.dimension_count_swa") not in (None, narrow):
        raise keys.fault("heads of layers with windows that turn in part are not supported")
    full = {
        "rope_type": "proportional",
        "partial_rotary_factor": len(turning) / len(factors),
        "rope_theta": theta(keys),
    }
    local = {"rope_type": "default", "rope_theta": theta(keys, "rope.freq_base_swa")}
    named: dict[str, Data] = {"full_attention": full, "sliding_attention": local}
    return {kind: {key: value for key, value in each.items() if value is not None} for kind, each in named.items()}


_STOPPED = 1e29


def _by_layer(keys: Keys, key: str) -> list[Any]:
    """The values of all layers; the file has a list or one number for all. Raises ModelLoadError."""
    stated = keys.get(key)
    if not isinstance(stated, array):
        return [keys.need(key)] * keys.num_layers
    values = stated.tolist()[: keys.num_layers]
    if len(values) < keys.num_layers or not all(isinstance(value, int) and 0 < value < 1 << 32 for value in values):
        raise keys.fault(f"{key} must be a list of positive numbers, one for each layer")
    return values


_OF_LAYERS = frozenset({"attention.shared_kv_layers", "embedding_length_per_layer_input"})
GEMMA: dict[str, Architecture] = {
    "gemma2": Architecture(_gemma2),
    "gemma3": Architecture(_gemma3),
    "gemma3n": Architecture(_gemma3n, _OF_LAYERS, reads_layers=True),
    "gemma-embedding": Architecture(_gemma_embedding),
    "gemma4": Architecture(_gemma4, _OF_LAYERS, reads_layers=True),
}
