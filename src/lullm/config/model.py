"""ModelConfig: a model's `config.json`, under the JSON's own field names. Unknown keys are ignored.

Both spellings of the rotary embedding's fields are read: `rope_theta` + `rope_scaling`, and the newer
`rope_parameters`; likewise `torch_dtype` and `dtype`.
"""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from lullm.errors import ModelLoadError

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
ModelDType = Literal["float32", "bfloat16", "float16"]
_ROPE_TYPES = get_args(RopeType)
_DTYPES = get_args(ModelDType)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base frequency and how it is stretched beyond the trained length."""

    rope_theta: float = 10000.0
    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The part of a decoder's `config.json` that lullm reads. Sizes in elements, lengths in tokens.

    `sliding_window`: a token sees so many tokens, itself included, in every layer. None: all before it.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    sliding_window: int | None = None
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    dtype: ModelDType = "float32"
    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Read `folder/config.json`.

        Raises:
            ModelLoadError: no such file, not JSON, or a field is missing or makes no sense.
        """
        path = folder / "config.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ModelLoadError(
                f"{folder} has no config.json; a model folder holds config.json, tokenizer.json and *.safetensors"
            ) from None
        except (OSError, ValueError, RecursionError) as error:
            raise ModelLoadError(f"{path} cannot be read as JSON: {error}") from None
        if not isinstance(data, dict):
            raise ModelLoadError(f"{path} must hold a JSON object")
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "ModelConfig":
        """From the parsed `config.json`. Raises ModelLoadError as `from_folder` does."""
        architectures = data.get("architectures")
        if not isinstance(architectures, list) or not architectures or not isinstance(architectures[0], str):
            raise ModelLoadError('config.json names no architecture ("architectures": ["Qwen3ForCausalLM"])')
        heads = _int(data, "num_attention_heads")
        hidden = _int(data, "hidden_size")
        kv_heads = _int(data, "num_key_value_heads", heads)
        if heads % kv_heads:
            raise ModelLoadError(
                f"config.json: num_attention_heads ({heads}) must be a multiple of num_key_value_heads ({kv_heads})"
            )
        head_dim = _int(data, "head_dim", hidden // heads)
        if head_dim % 2:
            raise ModelLoadError(f"config.json: head_dim must be even for rotary embeddings, got {head_dim}")
        if data.get("quantization_config") and not _is_kv_scheme(data["quantization_config"]):
            raise ModelLoadError("config.json: quantized checkpoints are not supported yet")
        act = data.get("hidden_act", "silu")
        if act != "silu":
            raise ModelLoadError(f"config.json: hidden_act {act!r} is not supported yet, only 'silu'")
        dtype = data.get("dtype") or data.get("torch_dtype") or "float32"
        if dtype not in _DTYPES:
            raise ModelLoadError(f"config.json: dtype {dtype!r} is not one of {', '.join(_DTYPES)}")
        return cls(
            architecture=architectures[0],
            vocab_size=_int(data, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_int(data, "intermediate_size"),
            num_hidden_layers=_int(data, "num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            head_dim=head_dim,
            max_position_embeddings=_int(data, "max_position_embeddings"),
            rms_norm_eps=_float(data, "rms_norm_eps", 1e-6),
            rope=_rope(data),
            sliding_window=_sliding_window(data, architectures[0]),
            hidden_act=act,
            tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
            attention_bias=bool(data.get("attention_bias", False)),
            mlp_bias=bool(data.get("mlp_bias", False)),
            dtype=cast(ModelDType, dtype),
            eos_token_ids=token_id_list(data.get("eos_token_id"), "config.json: eos_token_id"),
            bos_token_id=data.get("bos_token_id"),
        )


def token_id_list(value: Any, where: str) -> tuple[int, ...]:
    """An id, a list of ids or null, as both JSON files spell `eos_token_id`. Raises ModelLoadError."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelLoadError(f"{where} must be an id or a list of ids, not {value!r}")
    return tuple(ids)


def _is_kv_scheme(quantization: Any) -> bool:
    """Whether nothing is quantized but, if one likes, the KV cache to fp8: such a checkpoint only adds its scales."""
    if not isinstance(quantization, dict) or quantization.get("quant_method") != "compressed-tensors":
        return False
    groups, scheme = quantization.get("config_groups"), quantization.get("kv_cache_scheme")
    if groups or not isinstance(scheme, dict):
        return False
    kind = (scheme.get("type"), scheme.get("num_bits"), scheme.get("symmetric", True), scheme.get("dynamic", False))
    return kind == ("float", 8, True, False)


def _sliding_window(data: dict[str, Any], architecture: str) -> int | None:
    """The window of all layers, by transformers' rules: Mistral has one unless it is null, Qwen if it is switched on.

    Other families have none, whatever the file says.
    """
    is_qwen = architecture.startswith("Qwen")
    if not (architecture.startswith("Mistral") or is_qwen and data.get("use_sliding_window")):
        return None
    if data.get("sliding_window", 4096) is None:
        return None
    window = _int(data, "sliding_window", 4096)
    layer_types = data.get("layer_types")
    if layer_types is None:
        num_full = data.get("max_window_layers", 28) if is_qwen else 0
        if not isinstance(num_full, int):
            raise ModelLoadError(f"config.json: max_window_layers must be an integer, not {num_full!r}")
        num_layers = _int(data, "num_hidden_layers")
        layer_types = ["full_attention" if i < num_full else "sliding_attention" for i in range(num_layers)]
    if not isinstance(layer_types, list):
        raise ModelLoadError(f"config.json: layer_types must be a list, not {layer_types!r}")
    kinds = sorted({str(kind) for kind in layer_types})
    if kinds not in (["full_attention"], ["sliding_attention"]):
        raise ModelLoadError(
            "config.json: a sliding window is supported in all layers or in none, not in some; layer_types or "
            f"max_window_layers ask for {' and '.join(kinds) or 'nothing'}"
        )
    return window if kinds == ["sliding_attention"] else None


def _rope(data: dict[str, Any]) -> RopeConfig:
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ModelLoadError(f"config.json: rope_scaling must be an object, not {parameters!r}")
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in _ROPE_TYPES:
        raise ModelLoadError(f"config.json: rope_type {rope_type!r} is not one of {', '.join(_ROPE_TYPES)}")
    partial = parameters.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0
    if partial != 1:
        raise ModelLoadError(f"config.json: partial_rotary_factor {partial!r} is not supported yet, only 1.0")
    theta = _float(parameters, "rope_theta", _float(data, "rope_theta", 10000.0))
    name = "original_max_position_embeddings"
    original = next((_int(source, name) for source in (parameters, data) if source.get(name) is not None), None)
    factor = _float(parameters, "factor", 1.0)
    if rope_type in ("dynamic", "llama3", "yarn"):
        max_len = _int(data, "max_position_embeddings")
        original = original or max_len
        if rope_type == "yarn" and parameters.get("factor") is None:
            factor = max_len / original
    low, high = _float(parameters, "low_freq_factor", 1.0), _float(parameters, "high_freq_factor", 4.0)
    if low >= high:
        raise ModelLoadError(f"config.json: low_freq_factor ({low}) must be below high_freq_factor ({high})")
    optional = {
        name: None if parameters.get(name) is None else _float(parameters, name, 1.0)
        for name in ("attention_factor", "mscale", "mscale_all_dim")
    }
    return RopeConfig(
        rope_theta=theta,
        rope_type=cast(RopeType, rope_type),
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=_float(parameters, "beta_fast", 32.0),
        beta_slow=_float(parameters, "beta_slow", 1.0),
        truncate=bool(parameters.get("truncate", True)),
        **optional,
    )


def _int(data: dict[str, Any], name: str, default: int | None = None) -> int:
    value = data.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def _float(data: dict[str, Any], name: str, default: float) -> float:
    value = data.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelLoadError(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)
