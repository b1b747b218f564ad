"""The contents of a GGUF file as the `config.json` of the same model's folder, for the usual readers.

Keys are named in gguf's `constants.py`. Some of a config's values are not in a file but in the programs that run it:
which of Gemma's layers have windows, and the divisor of its scores.
"""

from typing import Any

from lullm.config.family.family import NULL_IS_NONE
from lullm.config.field import Data
from lullm.config.gguf.dense import DENSE
from lullm.config.gguf.encoder_only.architecture import ENCODERS
from lullm.config.gguf.encoder_only.pooling import of_labels, read_pooler
from lullm.config.gguf.experts import EXPERTS
from lullm.config.gguf.file import GGUFFile
from lullm.config.gguf.gemma import GEMMA
from lullm.config.gguf.hybrid import HYBRID
from lullm.config.gguf.keys import Architecture, Keys, short
from lullm.config.gguf.latent import LATENT
from lullm.config.gguf.rope import head_dim, theta
from lullm.errors import ModelLoadError


def config_data(file: GGUFFile) -> Data:
    """The file as a parsed `config.json`. Raises ModelLoadError: an architecture or a key is not supported."""
    keys = Keys(file)
    architecture = _ARCHITECTURES.get(file.architecture)
    if file.architecture == "clip":
        raise ModelLoadError(
            f"{file.path} reads pictures for another GGUF file, and is no model; give that file as the model, and this "
            "one as its mmproj (--mmproj FILE)"
        )
    if architecture is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ModelLoadError(
            f"{file.path}: the architecture {file.architecture!r} is not supported in GGUF; take the folder with the "
            f"model's safetensors (docs/models.md lists its families), or one of: {known}"
        )
    _refuse_arithmetic(keys, architecture)
    read_pooler(keys)
    data = {**_common(keys, architecture), **architecture.read(keys), **of_labels(keys), **_mask(keys)}
    return {key: value for key, value in data.items() if value is not None or key in NULL_IS_NONE}


_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}


def sampling_data(file: GGUFFile) -> Data:
    """The file's recommendations for sampling, as a parsed `generation_config.json`."""
    stated = {name: file.metadata.get(f"general.sampling.{key}") for name, key in _SAMPLING.items()}
    return {name: short(value) if isinstance(value, float) else value for name, value in stated.items()}


def _refuse_arithmetic(keys: Keys, architecture: Architecture) -> None:
    """Raises ModelLoadError: a key changes the result, and this architecture does not implement it."""
    found = {key: keys.get(key) for key in _CHANGE_ARITHMETIC if key not in architecture.implements}
    wrong = [f"{key} {value!r:.40}" for key, value in found.items() if not _says_none(key, value)]
    if wrong:
        raise ModelLoadError(
            f"{keys.file.path}: {', '.join(wrong)}: not implemented for {keys.file.architecture}, and it changes what "
            "the model computes"
        )


def _says_none(key: str, value: Any) -> bool:
    """Whether the value means none, or a factor of 1."""
    return value is None or value == 0 or value == 1.0 and key.endswith("_scale")


_CHANGE_ARITHMETIC = (
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "attention.temperature_scale",
    "embedding_scale", "residual_scale", "logit_scale", "expert_shared_count", "expert_weights_scale",
    "expert_group_count", "use_parallel_residual", "attention.kv_lora_rank", "attention.shared_kv_layers",
    "leading_dense_block_count", "interleave_moe_layer_step", "embedding_length_per_layer_input",
)  # fmt: skip


_MAY_LACK_MASK = frozenset({"llama", "qwen2", "qwen3"})
"""Decoders whose config may say that a token sees those behind it, too."""


def _mask(keys: Keys) -> Data:
    """Whether a token sees only those before it. Raises ModelLoadError: the file says otherwise, unsupported."""
    stated, architecture = keys.get("attention.causal"), keys.file.architecture
    is_encoder = architecture in ENCODERS or architecture == "gemma-embedding"
    if stated in (None, not is_encoder):
        return {}
    if stated is False and architecture in _MAY_LACK_MASK:
        return {"is_causal": False}
    raise keys.fault(
        f"attention.causal {stated!r:.40} is not supported for {architecture}; take the folder with the model's "
        "safetensors"
    )


def _common(keys: Keys, architecture: Architecture) -> Data:
    embedding = keys.file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelLoadError(f"{keys.file.path} has no tensor token_embd.weight")
    kv_heads = "attention.head_count_kv"
    heads = num_kv_heads = inner_size = None
    if architecture.has_heads:
        heads = keys.need("attention.head_count")
    if architecture.has_heads and not architecture.reads_layers:
        num_kv_heads = heads if keys.get(kv_heads) is None else keys.need(kv_heads, by_layer=architecture.is_hybrid)
        read = keys.number if keys.get("expert_count") else keys.need  # a model with experts in all layers may lack it
        inner_size = read("feed_forward_length", architecture.is_hybrid)
    tokens = ("eos_token_id", "eot_token_id", "eom_token_id")
    ends = [keys.file.metadata.get(f"tokenizer.ggml.{name}") for name in tokens]
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": keys.need("embedding_length"),
        "num_hidden_layers": keys.num_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": keys.number("attention.key_length"),
        "intermediate_size": inner_size,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "max_position_embeddings": keys.need("context_length"),
        "rope_theta": theta(keys),
        "tie_word_embeddings": "output.weight" not in keys.file.tensors,
        "dtype": _dtype(keys.file),
        "bos_token_id": keys.file.metadata.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(end for end in ends if end is not None)) or None,
    }


def _dtype(file: GGUFFile) -> str:
    """The type of most of the file; bfloat16 for quantized blocks."""
    sizes: dict[str, int] = {}
    for place in file.tensors.values():
        sizes[place.format.name] = sizes.get(place.format.name, 0) + place.num_bytes
    widest = max(sizes, key=lambda name: sizes[name], default="")
    return {"F32": "float32", "F16": "float16"}.get(widest, "bfloat16")


def _phi3(keys: Keys) -> Data:
    size, window = head_dim(keys), keys.get("attention.sliding_window")
    turned = keys.number("rope.dimension_count") or size
    long, short = keys.floats("rope_factors_long.weight"), keys.floats("rope_factors_short.weight")
    original = keys.number("rope.scaling.original_context_length")
    scaling: Data | None = None
    if long is not None and short is not None:
        scaling = {"rope_type": "longrope", "long_factor": long, "short_factor": short}
        if (factor := keys.number("rope.scaling.attn_factor")) is not None:
            scaling["attention_factor"] = factor
    return {
        "architectures": ["Phi3ForCausalLM"],
        "partial_rotary_factor": None if turned == size else turned / size,
        "original_max_position_embeddings": original,
        "rope_scaling": scaling,
        "sliding_window": window or None,
    }


_ARCHITECTURES = DENSE | GEMMA | ENCODERS | EXPERTS | HYBRID | LATENT | {"phi3": Architecture(_phi3)}
"""By `general.architecture`."""
