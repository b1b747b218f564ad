"""RopeConfig: how one layer rotates queries and keys.

Both spellings are read: `rope_theta` + `rope_scaling`, and the newer `rope_parameters`.
"""

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from lullm.config.field import optional_positive_float, positive_float, positive_int
from lullm.errors import ModelLoadError

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]
_ROPE_TYPES = get_args(RopeType)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding: base frequency, and how it is stretched beyond the trained length."""

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


def read_rope(data: dict[str, Any], parameters: Any, default_theta: float) -> RopeConfig:
    """From a whole `config.json` and the object in it that holds the rope's parameters.

    Args:
        default_theta: the base frequency where the parameters name none.

    Raises:
        ModelLoadError: a field makes no sense, or the kind is not supported.
    """
    if not isinstance(parameters, dict):
        raise ModelLoadError(f"config.json: rope_scaling must be an object, not {parameters!r}")
    rope_type = parameters.get("rope_type") or parameters.get("type") or "default"
    if rope_type not in _ROPE_TYPES:
        raise ModelLoadError(f"config.json: rope_type {rope_type!r} is not one of {', '.join(_ROPE_TYPES)}")
    partial = parameters.get("partial_rotary_factor") or data.get("partial_rotary_factor") or 1.0
    if partial != 1:
        raise ModelLoadError(f"config.json: partial_rotary_factor {partial!r} is not supported yet, only 1.0")
    name = "original_max_position_embeddings"
    original = next((positive_int(source, name) for source in (parameters, data) if source.get(name) is not None), None)
    factor = positive_float(parameters, "factor", 1.0)
    if rope_type in ("dynamic", "llama3", "yarn"):
        max_len = positive_int(data, "max_position_embeddings")
        original = original or max_len
        if rope_type == "yarn" and parameters.get("factor") is None:
            factor = max_len / original
    low, high = positive_float(parameters, "low_freq_factor", 1.0), positive_float(parameters, "high_freq_factor", 4.0)
    if low >= high:
        raise ModelLoadError(f"config.json: low_freq_factor ({low}) must be below high_freq_factor ({high})")
    return RopeConfig(
        rope_theta=positive_float(parameters, "rope_theta", default_theta),
        rope_type=cast(RopeType, rope_type),
        factor=factor,
        original_max_position_embeddings=original,
        low_freq_factor=low,
        high_freq_factor=high,
        beta_fast=positive_float(parameters, "beta_fast", 32.0),
        beta_slow=positive_float(parameters, "beta_slow", 1.0),
        attention_factor=optional_positive_float(parameters, "attention_factor"),
        mscale=optional_positive_float(parameters, "mscale"),
        mscale_all_dim=optional_positive_float(parameters, "mscale_all_dim"),
        truncate=bool(parameters.get("truncate", True)),
    )
