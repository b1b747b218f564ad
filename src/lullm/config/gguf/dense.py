"""Dense architectures of GGUF files: what each says beside the common keys."""

from collections.abc import Callable

from lullm.config.gguf.keys import Architecture, Data, Keys
from lullm.config.gguf.rope import head_dim, rope_scaling, turned_share, whole_heads
from lullm.config.gguf.window import layer_types
from lullm.errors import ModelLoadError

_QUERY_BIAS, _OUTPUT_BIAS, _MLP_BIAS = "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"
_QUERY_NORM = "blk.0.attn_q_norm.weight"
_GRANITE = {
    "attention_multiplier": "attention.scale", "embedding_multiplier": "embedding_scale",
    "residual_multiplier": "residual_scale", "logits_scaling": "logit_scale",
}  # fmt: skip
GRANITE_SCALES = frozenset(_GRANITE.values())


def plain(architecture: str) -> Callable[[Keys], Data]:
    """Heads turn as a whole, and nothing else is said."""

    def read(keys: Keys) -> Data:
        whole_heads(keys)
        if keys.get("expert_count"):
            raise ModelLoadError(
                f"{keys.file.path}: {keys.file.architecture} with experts is not supported; take the model's "
                "safetensors"
            )
        return {"architectures": [architecture], "rope_scaling": rope_scaling(keys)}

    return read


def with_biases(architecture: str, **names: str) -> Callable[[Keys], Data]:
    """As `plain`. names: of keys of the config, each true where the file has that tensor."""

    def read(keys: Keys) -> Data:
        stated = {name: True for name, tensor in names.items() if keys.has(tensor)}
        missing = {name: False for name, tensor in names.items() if not keys.has(tensor)}
        return {**plain(architecture)(keys), **stated, **missing}

    return read


def granite_scales(keys: Keys) -> Data:
    """Factors on embedding, residual stream, scores and logits."""
    return {name: keys.number(key) for name, key in _GRANITE.items()}


def _granite(keys: Keys) -> Data:
    biases = {"attention_bias": _QUERY_BIAS, "mlp_bias": _MLP_BIAS}
    return {**with_biases("GraniteForCausalLM", **biases)(keys), **granite_scales(keys)}


def _partial_heads(architecture: str, eps: str | None = None, **names: str) -> Callable[[Keys], Data]:
    """Heads turn in part. eps: the key of norms by mean and variance. names: as in `with_biases`."""

    def read(keys: Keys) -> Data:
        biases = {name: keys.has(tensor) for name, tensor in names.items()}
        share = {"partial_rotary_factor": turned_share(keys), "rope_scaling": rope_scaling(keys)}
        return {"architectures": [architecture], **share, **biases, **({} if eps is None else _eps(keys, eps))}

    return read


def _eps(keys: Keys, name: str) -> Data:
    return {name: keys.number("attention.layer_norm_epsilon")}


def _cohere(keys: Keys) -> Data:
    _refuse_head_norms(keys)
    return {**plain("CohereForCausalLM")(keys), **_eps(keys, "layer_norm_eps"), "logit_scale": keys.need("logit_scale")}


def _cohere2(keys: Keys) -> Data:
    """The programs that run a file know where its windows are: in three of four layers."""
    windows = {"sliding_window": keys.need("attention.sliding_window"), "layer_types": layer_types(keys, 4)}
    base = {**plain("Cohere2ForCausalLM")(keys), **_eps(keys, "layer_norm_eps")}
    return {**base, "logit_scale": keys.need("logit_scale"), **windows}


def _olmo(keys: Keys) -> Data:
    whole_heads(keys)
    return {"architectures": ["OlmoForCausalLM"], "rope_scaling": rope_scaling(keys)}


def _olmo2(keys: Keys) -> Data:
    """OLMo 3 has windows, and stretches the rope of the other layers only."""
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
    """Its yarn has the same factor on queries and keys as others have; queries grow behind the trained length."""
    whole_heads(keys)
    scale, beta = keys.number("rope.scaling.yarn_log_multiplier"), keys.number("attention.temperature_scale")
    rope = rope_scaling(keys) or {"rope_type": "default"}
    if rope["rope_type"] == "yarn":
        rope |= {name: scale for name in ("mscale", "mscale_all_dim") if scale is not None}
    rope |= {} if beta is None else {"llama_4_scaling_beta": beta}
    rope["rope_theta"] = keys.need("rope.freq_base")
    return {"architectures": ["Ministral3ForCausalLM"], "rope_parameters": rope, "rope_theta": None}


def _gpt2(keys: Keys) -> Data:
    positions = keys.file.tensors.get("position_embd.weight")
    if positions is None:
        raise ModelLoadError(f"{keys.file.path} has no tensor position_embd.weight")
    sizes = {"n_positions": positions.shape[0], "n_inner": keys.need("feed_forward_length")}
    return {"architectures": ["GPT2LMHeadModel"], **sizes, **_eps(keys, "layer_norm_epsilon")}


def _gemma(keys: Keys) -> Data:
    return {**plain("GemmaForCausalLM")(keys), "head_dim": head_dim(keys)}


def _refuse_head_norms(keys: Keys) -> None:
    if keys.has(_QUERY_NORM):
        raise ModelLoadError(
            f"{keys.file.path}: {keys.file.architecture} with norms of heads (attn_q_norm) is not supported; take "
            "another model"
        )


_LLAMA_BIASES = {"attention_bias": _QUERY_BIAS, "mlp_bias": _MLP_BIAS}
DENSE: dict[str, Architecture] = {
    "arcee": Architecture(with_biases("ArceeForCausalLM", **_LLAMA_BIASES)),
    "cohere2": Architecture(_cohere2, {"logit_scale"}),
    "command-r": Architecture(_cohere, {"logit_scale"}),
    "ernie4_5": Architecture(with_biases("Ernie4_5ForCausalLM", use_bias=_QUERY_BIAS)),
    "exaone4": Architecture(_exaone4),
    "gemma": Architecture(_gemma),
    "glm4": Architecture(_partial_heads("Glm4ForCausalLM", attention_bias=_QUERY_BIAS)),
    "gpt2": Architecture(_gpt2),
    "granite": Architecture(_granite, GRANITE_SCALES),
    "mistral3": Architecture(_mistral3, {"attention.temperature_scale"}),
    "nemotron": Architecture(_partial_heads("NemotronForCausalLM", "norm_eps", **_LLAMA_BIASES)),
    "olmo": Architecture(_olmo),
    "olmo2": Architecture(_olmo2),
    "phi2": Architecture(_partial_heads("PhiForCausalLM", "layer_norm_eps")),
    "qwen2": Architecture(plain("Qwen2ForCausalLM")),
    "qwen2vl": Architecture(plain("Qwen2ForCausalLM")),
    "qwen3": Architecture(plain("Qwen3ForCausalLM")),
    "qwen3vl": Architecture(plain("Qwen3ForCausalLM")),
    "seed_oss": Architecture(
        with_biases(
            "SeedOssForCausalLM",
            attention_bias=_QUERY_BIAS,
            attention_out_bias=_OUTPUT_BIAS,
            mlp_bias=_MLP_BIAS,
        )
    ),
    "smollm3": Architecture(with_biases("SmolLM3ForCausalLM", **_LLAMA_BIASES)),
    "stablelm": Architecture(_stablelm, {"use_parallel_residual"}),
    "starcoder2": Architecture(_starcoder2),
}
