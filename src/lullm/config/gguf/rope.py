"""The rotary embedding of a GGUF file: its stretch, and the rotated share of a head."""

from typing import Any

from lullm.config.field import Data
from lullm.config.gguf.keys import Keys, short


def rope_scaling(keys: Keys, **more: Any) -> Data | None:
    """The stretch of the rope. The tensor `rope_freqs` holds the factors that 'llama3' computes."""
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
    raise keys.fault(f"rope.scaling.type {kind!r} is not supported, only none, linear and yarn")


def head_dim(keys: Keys) -> int:
    """The head size of queries and keys."""
    stated = keys.number("attention.key_length")
    return int(stated or keys.need("embedding_length") // keys.need("attention.head_count"))


def whole_heads(keys: Keys) -> None:
    """Raises ModelLoadError: only a part of a head is rotated."""
    turned, size = keys.number("rope.dimension_count"), head_dim(keys)
    if turned not in (None, size):
        raise keys.fault(f"rope.dimension_count {turned} is not supported, only {size}")


def rotated(keys: Keys, architecture: str, is_whole: bool = True) -> Data:
    """The name and the rope of a config; `is_whole`: a file that rotates a part of a head is refused."""
    if is_whole:
        whole_heads(keys)
    return {"architectures": [architecture], "rope_scaling": rope_scaling(keys)}


def turned_share(keys: Keys) -> float:
    """The rotated share of a head."""
    size = head_dim(keys)
    return float((keys.number("rope.dimension_count") or size) / size)


def theta(keys: Keys, key: str = "rope.freq_base") -> float | None:
    """The base of the frequencies; None: the family's own."""
    value = keys.number(key)
    return None if value is None else short(value)
