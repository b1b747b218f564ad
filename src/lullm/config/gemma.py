"""What Gemma 2 and 3 (text) say in a `config.json`, and what they mean where it says nothing."""

from typing import Any

from lullm.config.decoder import MOST_INTERMEDIATE, MOST_LAYERS, DecoderConfig
from lullm.config.field import (
    boolean,
    optional_object,
    optional_positive_float,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.rope import RopeConfig, read_rope, read_theta
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind, SlidingWindow

_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
}
_SOFT_CAPS = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
"""Of a Gemma 2 that does not name them; null means none."""


def is_gemma(architecture: str) -> bool:
    return architecture.startswith("Gemma")


def with_gemma_defaults(data: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The parsed `config.json` with the family's own values for what it leaves out. Raises ModelLoadError."""
    filled = {**data, **{name: value for name, value in _DEFAULTS.items() if data.get(name) is None}}
    if not _is_third(architecture):
        filled = _SOFT_CAPS | filled
    if filled.get("layer_types") is None:
        pattern = positive_int(data, "sliding_window_pattern", 6, MOST_LAYERS) if _is_third(architecture) else 2
        kinds = ["sliding_attention"] * (pattern - 1) + ["full_attention"]
        num_layers = positive_int(data, "num_hidden_layers", most=MOST_LAYERS)
        filled["layer_types"] = [kinds[layer % pattern] for layer in range(num_layers)]
    return filled


def read_gemma(data: dict[str, Any], architecture: str, layer_kinds: tuple[LayerKind, ...]) -> DecoderConfig:
    """From what `with_gemma_defaults` gives. Raises ModelLoadError: a field is missing, or is not supported."""
    act = data["hidden_activation"]
    if act != "gelu_pytorch_tanh":
        raise ModelLoadError(
            f"config.json: hidden_activation {shown(act)} is not supported yet, only 'gelu_pytorch_tanh'"
        )
    if boolean(data, "use_bidirectional_attention", False):
        raise ModelLoadError("config.json: use_bidirectional_attention is not supported; choose a causal model")
    soft_cap = optional_positive_float(data, "attn_logit_softcapping")
    if soft_cap is not None and _is_third(architecture):
        raise ModelLoadError("config.json: attn_logit_softcapping is Gemma 2's; in a Gemma 3 it must be null")
    full, local = _ropes(data) if _is_third(architecture) else (_one_rope(data),) * 2
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=tuple(local if isinstance(kind, SlidingWindow) else full for kind in layer_kinds),
        attention_scale=positive_float(data, "query_pre_attn_scalar", 256.0) ** -0.5,
        activation="gelu_tanh",
        attention_bias=boolean(data, "attention_bias", False),
        embedding_scale=positive_int(data, "hidden_size") ** 0.5,
        attention_soft_cap=soft_cap,
        final_soft_cap=optional_positive_float(data, "final_logit_softcapping"),
    )


def _is_third(architecture: str) -> bool:
    return architecture.startswith("Gemma3")


def _one_rope(data: dict[str, Any]) -> RopeConfig:
    parameters = optional_object(data, "rope_parameters") or optional_object(data, "rope_scaling")
    return read_rope(data, parameters, read_theta(data, "rope_theta", 1e4))


def _ropes(data: dict[str, Any]) -> tuple[RopeConfig, RopeConfig]:
    """(of the layers with full attention, of those with a window). `rope_scaling` stretches the former only."""
    nested = optional_object(data, "rope_parameters")
    kinds = ("full_attention", "sliding_attention")
    if not set(nested) <= set(kinds):
        raise ModelLoadError(f"config.json: rope_parameters must hold objects named {' and '.join(kinds)}")
    scaling = optional_object(data, "rope_scaling")
    full, local = (optional_object(nested, kind) for kind in kinds)
    return (
        read_rope(data, full | scaling, read_theta(data, "rope_theta", 1e6)),
        read_rope(data, local, read_theta(data, "rope_local_base_freq", 1e4)),
    )
