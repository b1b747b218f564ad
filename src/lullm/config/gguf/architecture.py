"""What a GGUF file says, as the `config.json` that the same model's folder would have: then all goes the usual way.

Keys are named in gguf's `constants.py`. Some of a config's values are not in a file but in the programs that run it:
where Gemma's layers have windows, and what its scores are divided by.
"""

from array import array
from collections.abc import Callable
from typing import Any

from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.header import read_floats
from lullm.errors import ModelLoadError

Data = dict[str, Any]
_LARGEST = 1 << 53
"""Of a number: all up to it are whole in a float."""


class _Keys:
    """The metadata of one architecture: keys are said without its name in front."""

    def __init__(self, file: GGUFFile):
        self.file, self._prefix = file, file.architecture

    def get(self, key: str, default: Any = None) -> Any:
        return self.file.metadata.get(f"{self._prefix}.{key}", default)

    def need(self, key: str) -> Any:
        """One positive number for all layers, even where the file has an array of them."""
        value = self.number(key)
        if value is None:
            raise ModelLoadError(f"{self.file.path}: {self._prefix}.{key} is missing")
        return value

    def number(self, key: str) -> Any:
        """The same, or None. Raises ModelLoadError: it is something else."""
        value = self.get(key)
        if isinstance(value, array) and len(set(value)) == 1:
            value = value[0]
        if isinstance(value, array):
            raise ModelLoadError(
                f"{self.file.path}: {self._prefix}.{key} differs from layer to layer, which is not supported"
            )
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LARGEST
        if value is not None and not is_number:
            raise ModelLoadError(f"{self.file.path}: {self._prefix}.{key} must be a positive number, not {value!r:.80}")
        return value

    def floats(self, tensor: str) -> list[float] | None:
        place = self.file.tensors.get(tensor)
        return None if place is None else read_floats(place)


def config_data(file: GGUFFile) -> Data:
    """As a parsed `config.json`. Raises ModelLoadError: an architecture or a key that is not supported."""
    keys = _Keys(file)
    read = _ARCHITECTURES.get(file.architecture)
    if read is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ModelLoadError(
            f"{file.path}: the architecture {file.architecture!r} is not supported; known are: {known}"
        )
    _refuse_arithmetic(keys)
    data = {**_common(keys), **read(keys)}
    return {key: value for key, value in data.items() if value is not None}


_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def sampling_data(file: GGUFFile) -> Data:
    """What a file recommends for sampling, as a parsed `generation_config.json`."""
    stated = {name: file.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    return {name: _short(value) if isinstance(value, float) else value for name, value in stated.items()}


def _refuse_arithmetic(keys: _Keys) -> None:
    """Raises ModelLoadError: a key changes the result, and no architecture here implements it."""
    found = {key: keys.get(key) for key in _NOT_IMPLEMENTED}
    wrong = [f"{key} {value!r:.40}" for key, value in found.items() if not _says_none(key, value)]
    if wrong:
        raise ModelLoadError(
            f"{keys.file.path}: {', '.join(wrong)}: not implemented for {keys.file.architecture}, and it changes what "
            "the model computes"
        )


def _says_none(key: str, value: Any) -> bool:
    """No such thing, or a factor of 1."""
    return value is None or value == 0 or value == 1.0 and key.endswith("_scale")


_NOT_IMPLEMENTED = (
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "attention.temperature_scale",
    "embedding_scale", "residual_scale", "logit_scale", "expert_shared_count", "expert_weights_scale",
    "expert_group_count", "use_parallel_residual", "attention.kv_lora_rank", "attention.shared_kv_layers",
    "leading_dense_block_count", "interleave_moe_layer_step", "embedding_length_per_layer_input", "pooling_type",
)  # fmt: skip


def _common(keys: _Keys) -> Data:
    embedding = keys.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{keys.file.path} has no tensor token_embd.weight")
    heads, hidden = keys.need("attention.head_count"), keys.need("embedding_length")
    theta, is_multi = keys.number("rope.freq_base"), keys.get("attention.head_count_kv") is None
    tokens = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [keys.file.metadata.get(f"tokenizer.ggml.{name}") for name in tokens]
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "num_hidden_layers": keys.need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": heads if is_multi else keys.need("attention.head_count_kv"),
        "head_dim": keys.number("attention.key_length"),
        "intermediate_size": keys.need("feed_forward_length"),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.need("context_length"),
        "rope_theta": None if theta is None else _short(theta),
        "tie_word_embeddings": "output.weight" not in keys.file.tensors,
        "dtype": _dtype(keys.file),
        "bos_token_id": keys.file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)) or None,
    }


def _dtype(file: GGUFFile) -> str:
    """What most of the file is held in; for quantized blocks bfloat16."""
    sizes: dict[str, int] = {}
    for place in file.tensors.values():
        sizes[place.format.name] = sizes.get(place.format.name, 0) + place.num_bytes
    widest = max(sizes, key=lambda name: sizes[name], default="")
    return {"F32": "float32", "F16": "float16"}.get(widest, "bfloat16")


def _short(value: float) -> float:
    """A float of 32 bits as people wrote it: 0.1 rather than 0.10000000149."""
    return float(f"{value:.7g}")


def _rope_scaling(keys: _Keys, **more: Any) -> Data | None:
    """The stretch of the rope. The factors of a tensor `rope_freqs` are what 'llama3' would compute."""
    factors = keys.floats("rope_freqs.weight")
    if factors is not None:
        return {"rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0}
    kind = keys.get("rope.scaling.type", "none")
    if kind in ("none", ""):
        factor = keys.number("rope.scale_linear")
        return None if factor in (None, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind == "linear":
        return {"rope_type": "linear", "factor": keys.need("rope.scaling.factor")}
    if kind == "yarn":
        names = {"beta_fast": "yarn_beta_fast", "beta_slow": "yarn_beta_slow", "attention_factor": "yarn_attn_factor"}
        stated = {name: keys.number(f"rope.scaling.{key}") for name, key in names.items()}
        return {
            "rope_type": "yarn",
            "factor": keys.need("rope.scaling.factor"),
            "original_max_position_embeddings": keys.number("rope.scaling.original_context_length"),
            **{name: value for name, value in stated.items() if value is not None},
            **more,
        }
    raise ModelLoadError(f"{keys.file.path}: rope.scaling.type {kind!r} is not supported, only none, linear and yarn")


def _whole_heads(keys: _Keys) -> None:
    """Raises ModelLoadError: heads are rotated in part."""
    turned = keys.number("rope.dimension_count")
    head_dim = keys.number("attention.key_length") or keys.need("embedding_length") // keys.need("attention.head_count")
    if turned not in (None, head_dim):
        raise ModelLoadError(f"{keys.file.path}: rope.dimension_count {turned} is not supported, only {head_dim}")


def _plain(architecture: str) -> Callable[[_Keys], Data]:
    def read(keys: _Keys) -> Data:
        _whole_heads(keys)
        if keys.get("expert_count"):
            raise ModelLoadError(
                f"{keys.file.path}: {keys.file.architecture} with experts is not supported; take the model's "
                "safetensors"
            )
        return {"architectures": [architecture], "rope_scaling": _rope_scaling(keys)}

    return read


def _llama(keys: _Keys) -> Data:
    bias = {"attention_bias": True} if "blk.0.attn_q.bias" in keys.file.tensors else {}
    return {**_plain("LlamaForCausalLM")(keys), **bias}


def _qwen3_moe(keys: _Keys) -> Data:
    _whole_heads(keys)
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "rope_scaling": _rope_scaling(keys),
        "num_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "moe_intermediate_size": keys.need("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


_SECOND_LARGEST, _THIRD_LARGEST = 46, 62
"""Layers of Gemma 2 27B and of Gemma 3 27B, which divide scores by the root of hidden_size / heads."""


def _gemma(keys: _Keys, architecture: str, layers_of_largest: int) -> Data:
    _whole_heads(keys)
    head_dim = keys.need("attention.key_length")
    is_largest = keys.need("block_count") == layers_of_largest
    scalar = keys.need("embedding_length") / keys.need("attention.head_count") if is_largest else head_dim
    return {
        "architectures": [architecture],
        "sliding_window": keys.need("attention.sliding_window"),
        "query_pre_attn_scalar": scalar,
        "rope_scaling": _rope_scaling(keys),
    }


def _gemma2(keys: _Keys) -> Data:
    caps = ("attn_logit_softcapping", "final_logit_softcapping")
    return _gemma(keys, "Gemma2ForCausalLM", _SECOND_LARGEST) | {name: keys.number(name) for name in caps}


def _gemma3(keys: _Keys) -> Data:
    data = _gemma(keys, "Gemma3ForCausalLM", _THIRD_LARGEST)
    local = keys.number("rope.freq_base_swa")
    data["rope_local_base_freq"] = None if local is None else _short(local)
    data["final_logit_softcapping"] = keys.number("final_logit_softcapping")
    pattern = keys.get("attention.sliding_window_pattern")
    data["sliding_window_pattern"] = pattern if isinstance(pattern, int) else None
    return data


def _phi3(keys: _Keys) -> Data:
    head_dim = keys.number("attention.key_length") or keys.need("embedding_length") // keys.need("attention.head_count")
    turned, window = keys.number("rope.dimension_count") or head_dim, keys.get("attention.sliding_window")
    long, short = keys.floats("rope_factors_long.weight"), keys.floats("rope_factors_short.weight")
    original = keys.number("rope.scaling.original_context_length")
    scaling: Data | None = None
    if long is not None and short is not None:
        scaling = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        if (factor := keys.number("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = factor
    return {
        "architectures": ["Phi3ForCausalLM"],
        "partial_rotary_factor": None if turned == head_dim else turned / head_dim,
        "original_max_position_embeddings": original,
        "rope_scaling": scaling,
        "sliding_window": window or None,
    }


def _gpt_oss(keys: _Keys) -> Data:
    _whole_heads(keys)
    return {
        "architectures": ["GptOssForCausalLM"],
        "intermediate_size": keys.need("expert_feed_forward_length"),
        "num_local_experts": keys.need("expert_count"),
        "num_experts_per_tok": keys.need("expert_used_count"),
        "sliding_window": keys.need("attention.sliding_window"),
        # A plain rope is said, since a missing one means the released models'.
        "rope_parameters": _rope_scaling(keys, truncate=False) or {"rope_type": "default"},
    }


_ARCHITECTURES: dict[str, Callable[[_Keys], Data]] = {
    "llama": _llama,
    "qwen2": _plain("Qwen2ForCausalLM"),
    "qwen3": _plain("Qwen3ForCausalLM"),
    "qwen3moe": _qwen3_moe,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "phi3": _phi3,
    "gpt-oss": _gpt_oss,
}
"""By `general.architecture`."""
