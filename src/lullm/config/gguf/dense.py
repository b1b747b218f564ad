"""Dense architectures of GGUF files: the keys of each beside the common ones."""

from collections.abc import Callable

from lullm.config.field import Data
from lullm.config.gguf.keys import Architecture, Keys
from lullm.config.gguf.rope import head_dim, rope_scaling, rotated, theta, turned_share, whole_heads
from lullm.config.gguf.window import layer_types

_QUERY_BIAS, _OUTPUT_BIAS, _MLP_BIAS = "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"
_QUERY_NORM = "blk.0.attn_q_norm.weight"
_GRANITE = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
GRANITE_SCALES = frozenset(_GRANITE.values())


def plain(architecture: str) -> Callable[[Keys], Data]:
    """Whole heads are rotated; no other keys."""

    def read(keys: Keys) -> Data:
        if keys.get("expert_count"):
            raise keys.fault(f"{keys.file.architecture} with experts is not supported; take the model's safetensors")
        return rotated(keys, architecture)

    return read


def with_biases(architecture: str, **names: str) -> Callable[[Keys], Data]:
    """As `plain`. names: keys of the config, each with a tensor; the key is true if the file has it."""

    def read(keys: Keys) -> Data:
        return plain(architecture)(keys) | {name: keys.has(tensor) for name, tensor in names.items()}

    return read


def granite_scales(keys: Keys) -> Data:
    """Factors on embedding, residual stream, scores and logits."""
    return {name: keys.number(key) for name, key in _GRANITE.items()}


def _granite(keys: Keys) -> Data:
    biases = {"attention_bias": _QUERY_BIAS, "mlp_bias": _MLP_BIAS}
    return {**with_biases("GraniteForCausalLM", **biases)(keys), **granite_scales(keys)}


def _partial_heads(architecture: str, eps: str | None = None, **names: str) -> Callable[[Keys], Data]:
    """A part of each head is rotated. eps: the key of norms by mean and variance. names: as in `with_biases`."""

    def read(keys: Keys) -> Data:
        biases = {name: keys.has(tensor) for name, tensor in names.items()}
        data = rotated(keys, architecture, is_whole=False) | {"partial_rotary_factor": turned_share(keys)} | biases
        return data if eps is None else data | _eps(keys, eps)

    return read


def _eps(keys: Keys, name: str) -> Data:
    return {name: keys.number("attention.layer_norm_epsilon")}


def _cohere(keys: Keys) -> Data:
    _refuse_head_norms(keys)
    return {**plain("CohereForCausalLM")(keys), **_eps(keys, "layer_norm_eps"), "logit_scale": keys.need("logit_scale")}


def _cohere2(keys: Keys) -> Data:
    """The programs that run a file know its window layers: three of four."""
    windows = {"sliding_window": keys.need("attention.sliding_window"), "layer_types": layer_types(keys, 4)}
    base = {**plain("Cohere2ForCausalLM")(keys), **_eps(keys, "layer_norm_eps")}
    return {**base, "logit_scale": keys.need("logit_scale"), **windows}


def _olmo2(keys: Keys) -> Data:
    """OLMo 3 has windows, and stretches only the rope of the other layers."""
    window = keys.number("attention.sliding_window")
    if window is None:
        return plain("Olmo2ForCausalLM")(keys)
    whole_heads(keys)
    base = {"rope_type": "default", "rope_theta": keys.number("rope.freq_base")}
    full = {**base, **(rope_scaling(keys) or {})}
    return {
        "architectures": ["Olmo3ForCausalLM"],
        "sliding_window": window,
        "layer_types": layer_types(keys, 4),
        "rope_theta": None,
        "rope_parameters": {"full_attention": full, "sliding_attention": base},
    }


def _exaone4(keys: Keys) -> Data:
    window = keys.number("attention.sliding_window")
    types = ["full_attention"] * keys.num_layers if window is None else layer_types(keys, 4)
    return {**plain("Exaone4ForCausalLM")(keys), "layer_types": types, "sliding_window": window}


def _starcoder2(keys: Keys) -> Data:
    window = keys.number("attention.sliding_window")
    data = with_biases("Starcoder2ForCausalLM", use_bias=_QUERY_BIAS)(keys)
    return {**data, **_eps(keys, "norm_epsilon"), "sliding_window": window}


def _stablelm(keys: Keys) -> Data:
    _refuse_head_norms(keys)
    read = _partial_heads("StableLmForCausalLM", "layer_norm_eps", use_qkv_bias=_QUERY_BIAS)
    return {**read(keys), "use_parallel_residual": not keys.has("blk.0.ffn_norm.weight")}


def _mistral3(keys: Keys) -> Data:
    """Its YaRN has the usual factor on queries and keys; queries grow after the trained length."""
    whole_heads(keys)
    scale, beta = keys.number("rope.scaling.yarn_log_multiplier"), keys.number("attention.temperature_scale")
    rope = rope_scaling(keys) or {"rope_type": "default"}
    if rope["rope_type"] == "yarn":
        rope |= {name: scale for name in ("mscale", "mscale_all_dim") if scale is not None}
    rope |= {} if beta is None else {"llama_4_scaling_beta": beta}
    rope["rope_theta"] = keys.need("rope.freq_base")
    return {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": rope, "rope_theta": None}


def _gpt2(keys: Keys, architecture: str = "GPT2LMHeadModel") -> Data:
    positions = keys.file.tensors.get("position_embd.weight")
    if positions is None:
        raise keys.fault("the tensor position_embd.weight is missing")
    sizes = {"n_positions": positions.shape[0], "n_inner": keys.need("feed_forward_length")}
    return {"architectures": [architecture], **sizes, **_eps(keys, "layer_norm_epsilon")}


def _starcoder(keys: Keys) -> Data:
    if keys.need("attention.head_count_kv") != 1:
        raise keys.fault("starcoder with more than one key head is not supported in GGUF; take the model's safetensors")
    return _gpt2(keys, "GPTBigCodeForCausalLM")


def _gpt_neox(keys: Keys) -> Data:
    return {
        **rotated(keys, "GPTNeoXForCausalLM", is_whole=False),
        "rotary_pct": turned_share(keys),
        "rotary_emb_base": theta(keys),
        "use_parallel_residual": bool(keys.get("use_parallel_residual", True)),
        "attention_bias": keys.has("blk.0.attn_qkv.bias"),
        **_eps(keys, "layer_norm_eps"),
    }


def _falcon(keys: Keys) -> Data:
    """Attention and MLP are parallel in all files; groups of heads came with the second norm (40B)."""
    if keys.has("blk.0.attn_qkv.bias"):
        raise keys.fault("falcon with biases is not supported in GGUF; take the model's safetensors")
    num_kv_heads, has_two = keys.need("attention.head_count_kv"), keys.has("blk.0.attn_norm_2.weight")
    return {
        **rotated(keys, "FalconForCausalLM"),
        "new_decoder_architecture": has_two or num_kv_heads > 1,
        "num_kv_heads": num_kv_heads,
        "num_ln_in_parallel_attn": 2 if has_two else 1,
        "ffn_hidden_size": keys.need("feed_forward_length"),
        **_eps(keys, "layer_norm_epsilon"),
    }


def _mpt(keys: Keys) -> Data:
    slope = keys.number("attention.max_alibi_bias")
    if slope is None:
        raise keys.fault("mpt without attention.max_alibi_bias, which has learned positions, is not supported")
    attention = {"alibi": True, "alibi_bias_max": slope}
    return {"architectures": ["MptForCausalLM"], "attn_config": attention, **_eps(keys, "layer_norm_epsilon")}


def _bloom(keys: Keys) -> Data:
    """The programs that run a file know that its scores fall with distance."""
    return {"architectures": ["BloomForCausalLM"], **_eps(keys, "layer_norm_epsilon")}


def _apertus(keys: Keys) -> Data:
    """A plain rope is stated, since a missing one means that of the released models."""
    data = with_biases("ApertusForCausalLM", attention_bias=_QUERY_BIAS)(keys)
    return {**data, "rope_parameters": data.pop("rope_scaling") or {"rope_type": "default"}}


def _minicpm(keys: Keys) -> Data:
    """Like Granite, with the usual factor on scores."""
    if keys.has("rope_factors_long.weight"):
        raise keys.fault("minicpm with factors for every frequency (rope_factors_long) is not supported")
    for key in ("embedding_scale", "residual_scale", "logit_scale"):
        keys.need(key)
    return {**_granite(keys), "attention_multiplier": head_dim(keys) ** -0.5}


def _gemma(keys: Keys) -> Data:
    return {**plain("GemmaForCausalLM")(keys), "head_dim": head_dim(keys)}


def _refuse_head_norms(keys: Keys) -> None:
    if keys.has(_QUERY_NORM):
        raise keys.fault(
            f"{keys.file.architecture} with norms of heads (attn_q_norm) is not supported; take another model"
        )


_LLAMA_BIASES = {"attention_bias": _QUERY_BIAS, "mlp_bias": _MLP_BIAS}
DENSE: dict[str, Architecture] = {
    "apertus": Architecture(_apertus),
    "arcee": Architecture(with_biases("ArceeForCausalLM", **_LLAMA_BIASES)),
    "bloom": Architecture(_bloom),
    "cohere2": Architecture(_cohere2, {"logit_scale"}),
    "command-r": Architecture(_cohere, {"logit_scale"}),
    "ernie4_5": Architecture(with_biases("Ernie4_5ForCausalLM", use_bias=_QUERY_BIAS)),
    "exaone": Architecture(plain("LlamaForCausalLM")),
    "exaone4": Architecture(_exaone4),
    "falcon": Architecture(_falcon),
    "gemma": Architecture(_gemma),
    "glm4": Architecture(_partial_heads("Glm4ForCausalLM", attention_bias=_QUERY_BIAS)),
    "gpt2": Architecture(_gpt2),
    "gptneox": Architecture(_gpt_neox, {"use_parallel_residual"}),
    "granite": Architecture(_granite, GRANITE_SCALES),
    "hunyuan-dense": Architecture(with_biases("HunYuanDenseV1ForCausalLM", attention_bias=_QUERY_BIAS)),
    "internlm2": Architecture(plain("LlamaForCausalLM")),
    "minicpm": Architecture(_minicpm, GRANITE_SCALES - {"attention.scale"}),
    "mistral3": Architecture(_mistral3, {"attention.temperature_scale"}),
    "mpt": Architecture(_mpt, {"attention.max_alibi_bias"}),
    "nemotron": Architecture(_partial_heads("NemotronForCausalLM", "norm_eps", **_LLAMA_BIASES)),
    "olmo": Architecture(plain("OlmoForCausalLM")),
    "olmo2": Architecture(_olmo2),
    "phi2": Architecture(_partial_heads("PhiForCausalLM", "layer_norm_eps")),
    "qwen2": Architecture(plain("Qwen2ForCausalLM")),
    "qwen2vl": Architecture(plain("Qwen2ForCausalLM")),
    "qwen3": Architecture(plain("Qwen3ForCausalLM")),
    "qwen3vl": Architecture(plain("Qwen3ForCausalLM")),
    "seed_oss": Architecture(
        with_biases(
            "SeedOssForCausalLM", attention_bias=_QUERY_BIAS, attention_out_bias=_OUTPUT_BIAS, mlp_bias=_MLP_BIAS
        )
    ),
    "smollm3": Architecture(with_biases("SmolLM3ForCausalLM", **_LLAMA_BIASES)),
    "stablelm": Architecture(_stablelm, {"use_parallel_residual"}),
    "starcoder": Architecture(_starcoder),
    "starcoder2": Architecture(_starcoder2),
    "xverse": Architecture(plain("LlamaForCausalLM")),
}
