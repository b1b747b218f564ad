"""params.json of Mistral's releases, under the names of config.json.

The result is the config.json of the same model as its publisher converts it for transformers. Unknown keys stay in it,
so that they are named in a warning, as those of a config.json are.
"""

from typing import Any

from lullm.config.field import boolean, optional_object, positive_float, positive_int, shown
from lullm.errors import ModelLoadError

Data = dict[str, Any]

_DIGITS = 10  # of a number in a text; Python refuses to read thousands

_NEEDED = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size", "vocab_size": "vocab_size",
}  # fmt: skip
_NAMES = {
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "norm_eps": "rms_norm_eps",
    "tied_embeddings": "tie_word_embeddings", "activation": "hidden_act",
    **{name: name for name in ("dtype", "quantization_config")},
}  # fmt: skip
_LATENT = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = {
    "num_experts": "n_routed_experts", "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size", "first_k_dense_replace": "first_k_dense_replace",
    "num_shared_experts": "n_shared_experts", "routed_scale": "routed_scaling_factor",
    "num_expert_groups": "n_group", "num_expert_groups_per_tok": "topk_group",
}  # fmt: skip
_READ_APART = frozenset({
    "moe", "rope_theta", "yarn", "llama_4_scaling", "sliding_window", "vision_encoder", "quantization", "max_seq_len",
    "max_position_embeddings", "model_type",
})  # fmt: skip
_WITHOUT_EFFECT = frozenset({"max_batch_size", "use_cache"})
_DEFAULT_LEN, _DEFAULT_THETA = 128_000, 10_000.0
"""vLLM's, where a file has none."""
_TOWER = (
    "hidden_size", "num_channels", "image_size", "patch_size", "rope_theta", "intermediate_size", "num_hidden_layers",
    "num_attention_heads",
)  # fmt: skip


def config_data(params: Data) -> Data:
    """The config.json that says the same. Raises ModelLoadError: a key is missing, or needs what is not implemented."""
    _refuse(params)
    if missing := [name for name in _NEEDED if params.get(name) is None]:
        raise ModelLoadError(f"it lacks {', '.join(missing)}")
    names = _NEEDED | _NAMES
    text = {names[name]: value for name, value in params.items() if name in names and value is not None}
    known = names.keys() | _READ_APART | _WITHOUT_EFFECT | set(_LATENT)
    text |= {name: value for name, value in params.items() if name not in known}
    length = params.get("max_position_embeddings") or params.get("max_seq_len")
    text |= {"max_position_embeddings": length or _DEFAULT_LEN, "bos_token_id": 1, "eos_token_id": 2}
    text.setdefault("dtype", "bfloat16")
    text |= _rope(params) | _quantization(params)
    text |= _window(params.get("sliding_window"), text)
    text["architectures"] = [_architecture(params)]
    text |= _latent_experts(params) if "kv_lora_rank" in params else _experts(params)
    tower = optional_object(params, "vision_encoder")
    return _with_tower(text, tower) if tower else text


def _refuse(params: Data) -> None:
    """Raises ModelLoadError: a model of another kind."""
    if params.get("model_type") not in (None, "transformer"):
        raise ModelLoadError(f"model_type {shown(params['model_type'])} is not implemented")
    if params.get("multimodal"):
        raise ModelLoadError("a model that hears is read in transformers' layout: take the copy with a config.json")


def _architecture(params: Data) -> str:
    if "kv_lora_rank" in params:
        if not params.get("moe"):
            raise ModelLoadError("latent vectors without experts (kv_lora_rank without moe) are not implemented")
        return "Mistral4ForCausalLM"
    if params.get("moe"):
        return "MixtralForCausalLM"
    if isinstance(params.get("sliding_window"), list):
        return "MinistralForCausalLM"
    return "Ministral3ForCausalLM" if params.get("llama_4_scaling") else "MistralForCausalLM"


def _window(window: Any, text: Data) -> Data:
    """One window for all layers, or a pattern of windows that the layers repeat."""
    if not isinstance(window, list):
        is_number = isinstance(window, str) and window.isdecimal() and len(window) < _DIGITS
        return {"sliding_window": int(window) if is_number else window}
    sizes, count = {size for size in window if size is not None}, text["num_hidden_layers"]
    if not window or len(sizes) > 1 or not isinstance(count, int) or count % len(window):
        raise ModelLoadError(f"sliding_window {shown(window)} is no pattern of one size for {shown(count)} layers")
    kinds = ["full_attention" if size is None else "sliding_attention" for size in window]
    return {"sliding_window": min(sizes, default=None), "layer_types": kinds * (count // len(window))}


def _rope(params: Data) -> Data:
    yarn, growth = optional_object(params, "yarn"), optional_object(params, "llama_4_scaling")
    if not yarn:
        if growth:
            raise ModelLoadError("llama_4_scaling without yarn is not implemented")
        rope = {"rope_type": "default", "rope_theta": params.get("rope_theta") or _DEFAULT_THETA}
        return {"rope_parameters": rope}
    trained = positive_int(yarn, "original_max_position_embeddings")
    rope = {
        "rope_type": "yarn",
        "rope_theta": params.get("rope_theta") or _DEFAULT_THETA,
        "factor": positive_float(yarn, "factor", 1.0),
        "original_max_position_embeddings": trained,
        "beta_fast": positive_float(yarn, "beta", 32.0),
        "beta_slow": positive_float(yarn, "alpha", 1.0),
    }
    if not boolean(yarn, "apply_scale", True):
        rope |= {"mscale": 1.0, "mscale_all_dim": 1.0}  # which cancel each other
    if growth:
        if growth.get("original_max_position_embeddings", trained) != trained:
            raise ModelLoadError("llama_4_scaling and yarn name different original_max_position_embeddings")
        rope["llama_4_scaling_beta"] = positive_float(growth, "beta", 0.1)
    return {"rope_parameters": rope}


def _experts(params: Data) -> Data:
    experts = optional_object(params, "moe")
    if not experts:
        return {}
    return {
        "num_local_experts": positive_int(experts, "num_experts"),
        "num_experts_per_tok": positive_int(experts, "num_experts_per_tok"),
    }


def _latent_experts(params: Data) -> Data:
    experts = optional_object(params, "moe")
    if experts.get("route_every_n") not in (None, 1):
        raise ModelLoadError(f"moe: route_every_n {shown(experts['route_every_n'])} is not implemented, only 1")
    found = {new: experts[name] for name, new in _EXPERTS.items() if experts.get(name) is not None}
    sizes = {name: params[name] for name in _LATENT if name in params}
    return {**sizes, **found, "norm_topk_prob": True}


def _quantization(params: Data) -> Data:
    stated = optional_object(params, "quantization")
    if not stated:
        return {}
    if str(stated.get("quant_method")).replace("_", "-") == "compressed-tensors":
        return {"quantization_config": stated | {"quant_method": "compressed-tensors"}}
    if stated.get("qformat_weight") != "fp8_e4m3":
        raise ModelLoadError(f"quantization {shown(stated)} is not implemented, only qformat_weight 'fp8_e4m3'")
    unread = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    scheme = {"activation_scheme": "static", "weight_block_size": None, "modules_to_not_convert": unread}
    return {"quantization_config": {"quant_method": "fp8", **scheme}}


def _with_tower(text: Data, tower: Data) -> Data:
    """The config of the whole model, with Pixtral's tower."""
    merges = tower.get("mm_projector_id") == "patch_merge"
    edge = tower.get("max_image_size")
    if edge not in (None, tower.get("image_size")):
        raise ModelLoadError(f"vision_encoder: max_image_size {shown(edge)} is not its image_size")
    if merges and not boolean(tower, "add_pre_mm_projector_layer_norm", False):
        raise ModelLoadError("vision_encoder: a patch_merge without a norm before it is not implemented")
    stated = {name: tower[name] for name in _TOWER if name in tower}
    whole: Data = {name: text.pop(name) for name in ("architectures", "quantization_config") if name in text}
    text["model_type"] = _MODEL_TYPES[whole["architectures"][0]]
    data: Data = {
        **whole,
        "architectures": ["Mistral3ForConditionalGeneration" if merges else "LlavaForConditionalGeneration"],
        "text_config": text,
        "vision_config": {"model_type": "pixtral", "hidden_act": "silu", **stated},
        "vision_feature_layer": -1,
        "image_token_id": tower.get("image_token_id", 10),
        "multimodal_projector_bias": boolean(tower, "adapter_bias", not merges),
        "projector_hidden_act": "gelu",
        "tie_word_embeddings": text.get("tie_word_embeddings", False),
    }
    if merges:
        return data | {"spatial_merge_size": positive_int(tower, "spatial_merge_size", 2)}
    return data | {"vision_feature_select_strategy": "full"}


_MODEL_TYPES = {
    "MistralForCausalLM": "mistral", "MinistralForCausalLM": "ministral", "Ministral3ForCausalLM": "ministral3",
    "MixtralForCausalLM": "mixtral", "Mistral4ForCausalLM": "mistral4",
}  # fmt: skip
"""The `model_type` of text models that have a tower."""
