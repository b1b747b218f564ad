"""Llama, and dense families with its keys."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lullm.config.decoder import DecoderConfig, QueryStretch
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import Kinds, window_if_switched_on, window_unless_null
from lullm.config.field import (
    MOST_HEAD_DIM,
    MOST_INTERMEDIATE,
    Data,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.rope import MOST_POSITIONS, ROPE_KEYS, RopeConfig, read_flat_rope, stated_rope
from lullm.errors import ModelLoadError
from lullm.types.arithmetic import Activation
from lullm.types.layer_kind import has_window

ACTIVATIONS: dict[Any, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip
"""Activations by transformers' names."""

DENSE_READS = ROPE_KEYS | {"intermediate_size", "rms_norm_eps", "hidden_act"}
"""Keys of every dense family."""


def activation(data: Data, name: str) -> Activation:
    """Raises ModelLoadError."""
    stated = data.get(name, "silu")
    if not isinstance(stated, str) or stated not in ACTIVATIONS:
        raise ModelLoadError(f"config.json: {name} {shown(stated)} is not supported, only {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[stated]


def ropes_of(kinds: Kinds, full: RopeConfig, local: RopeConfig) -> tuple[RopeConfig, ...]:
    """The rope of each layer: `local` for those with a window, `full` for others."""
    return tuple(local if has_window(kind) else full for kind in kinds)


def ropes_where(turns: Sequence[bool], config: DecoderConfig) -> tuple[RopeConfig | None, ...]:
    """The rope of each layer that rotates its heads; None for others."""
    return tuple(rope if is_turned else None for rope, is_turned in zip(config.ropes, turns, strict=True))


def with_rope(data: Data, parameters: Data) -> Data:
    """The data with these rope parameters, if the file has none."""
    return {**data, "rope_parameters": parameters} if data.get("rope_parameters") is None else data


_BETA, _TRAINED = "llama_4_scaling_beta", "original_max_position_embeddings"


def without_stretch(data: Data, theta: float, factor: float, trained_len: int) -> tuple[Data, QueryStretch | None]:
    """For Ministral 3 and Mistral 4, whose rope parameters include the stretch of queries. The numbers are those of
    transformers' rope where a file has none.
    """
    name, parameters = stated_rope(data)
    parameters = parameters or {
        "rope_type": "yarn", "rope_theta": theta, "factor": factor, _TRAINED: trained_len, _BETA: 0.1,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale_all_dim": 1.0, "mscale": 1.0,
    }  # fmt: skip
    stretch = None
    if parameters.get(_BETA) is not None:
        max_len = positive_int(data, "max_position_embeddings", most=MOST_POSITIONS)
        stretched_from = positive_int(parameters, _TRAINED, max_len, MOST_POSITIONS)
        stretch = QueryStretch(positive_float(parameters, _BETA, 0.1), stretched_from)
    rope = {key: value for key, value in parameters.items() if key not in (_BETA, "max_position_embeddings")}
    return {**data, name: rope}, stretch


def read_dense(data: Data, kinds: Kinds, head_dim: int) -> DecoderConfig:
    """One rope for all layers. See `Family.read`."""
    return DecoderConfig(
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        rms_norm_eps=positive_float(data, "rms_norm_eps", 1e-6),
        ropes=(read_flat_rope(data),) * len(kinds),
        attention_scale=head_dim**-0.5,
        activation=activation(data, "hidden_act"),
        attention_bias=boolean(data, "attention_bias", False),
        mlp_bias=boolean(data, "mlp_bias", False),
    )


_PLAIN_ROPES = ("default", "linear", "dynamic", "llama3")


def keeps_length(config: DecoderConfig) -> None:
    """Raises ModelLoadError: the rotation changes the length of a head, which norms after it undo.

    Otherwise norms without weights have the same result before the rotation, where the ops have them.
    """
    ropes = [rope for rope in config.ropes if rope is not None and rope.attention_factor != 1.0]
    if wrong := [rope.rope_type for rope in ropes if rope.rope_type not in _PLAIN_ROPES]:
        raise ModelLoadError(
            f"config.json: rope_parameters have rope_type {wrong[0]!r}, whose factor norms behind the rotation take "
            f"away again; only {', '.join(_PLAIN_ROPES)} are supported here"
        )


def read_partial(data: Data, kinds: Kinds, head_dim: int, default: float) -> DecoderConfig:
    """As `read_dense`, for a family that rotates a part of every head; `default`: that part, if the file has none."""
    name = "partial_rotary_factor"
    rope = read_flat_rope({**data, name: data.get(name) or default}, has_partial=True)
    plain = {key: value for key, value in data.items() if key not in ("rope_scaling", "rope_parameters", name)}
    return replace(read_dense(plain, kinds, head_dim), ropes=(rope,) * len(kinds))


def rotated_share(data: Data, head_dim: int) -> float:
    """The share of a head in `rotary_dim`; 1 without the key. Raises ModelLoadError."""
    turned = positive_int(data, "rotary_dim", head_dim, MOST_HEAD_DIM)
    if turned > head_dim:
        raise ModelLoadError(f"config.json: rotary_dim ({turned}) must be at most the size of a head ({head_dim})")
    return 1.0 if turned == head_dim else (turned + 1e-6) / head_dim  # of the product the whole part counts


LLAMA = Family(read_dense, reads=DENSE_READS | {"attention_bias", "mlp_bias"})
MISTRAL = Family(read_dense, defaults={"sliding_window": 4096}, reads=DENSE_READS, layer_kinds=window_unless_null)
_SWITCH = {"use_sliding_window", "sliding_window", "max_window_layers"}
QWEN2 = Family(
    read_dense,
    defaults={"sliding_window": 4096},
    reads=DENSE_READS | _SWITCH,
    always={"attention_bias": True, "output_bias": False},
    layer_kinds=window_if_switched_on,
)
QWEN3 = Family(
    read_dense,
    defaults={"sliding_window": 4096},
    reads=DENSE_READS | _SWITCH | {"attention_bias"},
    always={"qk_norm": "heads"},
    layer_kinds=window_if_switched_on,
)
