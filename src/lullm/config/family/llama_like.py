"""Families near Llama: Phi-3 and 4, SmolLM3, OLMo 2 and 3, Granite 3 and 4 (dense)."""

from dataclasses import replace
from functools import partial
from typing import Any

from lullm.config.decoder import DecoderConfig
from lullm.config.family.dense import DENSE_READS, NO_WINDOW, UNUSED_WINDOW, read_dense, ropes_of
from lullm.config.family.family import Family
from lullm.config.family.layer_kinds import num_layers, window_but_every, window_unless_null, window_without_rope
from lullm.config.field import optional_object, positive_float, positive_int, shown
from lullm.config.rope import read_flat_rope, read_ropes_by_kind, read_theta
from lullm.errors import ModelLoadError
from lullm.types.layer_kind import LayerKind


def _read_phi3(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    """`su` and `yarn` are older names of `longrope` here."""
    names = ("rope_scaling", "rope_parameters")
    data = {**data, **{name: _renamed(data[name], data) for name in names if optional_object(data, name)}}
    rope = read_flat_rope(data, has_partial=True)
    return replace(_without_rope(data, kinds, head_dim), ropes=(rope,) * len(kinds))


def _renamed(parameters: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    stated = parameters.get("rope_type") or parameters.get("type")
    rope_type = "longrope" if stated in ("su", "yarn") else stated
    # The file's own value goes before that of the parameters.
    name = "original_max_position_embeddings"
    return {**parameters, "rope_type": rope_type, name: data[name]}


def _without_rope(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    """As `read_dense`, for a family that reads its ropes by itself."""
    plain = {key: value for key, value in data.items() if key not in ("rope_scaling", "rope_parameters")}
    return read_dense({**plain, "partial_rotary_factor": None}, kinds, head_dim)


def _read_smollm3(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    config = read_dense(data, kinds, head_dim)
    ropes = tuple(rope if turns else None for rope, turns in zip(config.ropes, _turns(data), strict=True))
    return replace(config, ropes=ropes)


def _turns(data: dict[str, Any]) -> list[bool]:
    """By layer, whether its heads are rotated. In `no_rope_layers`, in spite of its name, 1 says that they are."""
    stated, count = data.get("no_rope_layers"), num_layers(data)
    if stated is None:
        interval = positive_int(data, "no_rope_layer_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(count)]
    if not isinstance(stated, list) or len(stated) < count or not all(value in (0, 1) for value in stated):
        raise ModelLoadError(f"config.json: no_rope_layers must be a list of 0 and 1 per layer, not {shown(stated)}")
    return [bool(value) for value in stated[:count]]


def _smollm3_kinds(data: dict[str, Any]) -> tuple[LayerKind, ...]:
    return window_without_rope(data, _turns(data))


_OLMO3_THETA = 5e5


def _read_olmo3(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    # transformers reads `rope_theta` for the layers with full attention, and forgets it for the others.
    full, local = read_ropes_by_kind(data, read_theta(data, "rope_theta", _OLMO3_THETA), _OLMO3_THETA)
    return replace(_without_rope(data, kinds, head_dim), ropes=ropes_of(kinds, full, local))


def _read_granite(data: dict[str, Any], kinds: tuple[LayerKind, ...], head_dim: int) -> DecoderConfig:
    return replace(
        read_dense(data, kinds, head_dim),
        embedding_scale=positive_float(data, "embedding_multiplier", 1.0),
        residual_scale=positive_float(data, "residual_multiplier", 1.0),
        attention_scale=positive_float(data, "attention_multiplier", 1.0),
        logit_scale=1 / positive_float(data, "logits_scaling", 1.0),
    )


PHI3 = Family(
    _read_phi3,
    defaults={"rms_norm_eps": 1e-5, "original_max_position_embeddings": 4096},
    reads=DENSE_READS | {"partial_rotary_factor", "sliding_window"},
    ignores=frozenset({"resid_pdrop", "embd_pdrop"}),
    layer_kinds=window_unless_null,
)
SMOLLM3 = Family(
    _read_smollm3,
    defaults={"tie_word_embeddings": True, "rope_theta": 2e6},
    reads=DENSE_READS
    | {
        "attention_bias",
        "mlp_bias",
        "no_rope_layers",
        "no_rope_layer_interval",
        "use_sliding_window",
        "sliding_window",
    },
    ignores=frozenset({"max_window_layers"}),
    layer_kinds=_smollm3_kinds,
)
OLMO2 = Family(
    read_dense,
    defaults={"rms_norm_eps": 1e-5},
    reads=DENSE_READS | {"attention_bias"},
    fixed=NO_WINDOW,
    ignores=UNUSED_WINDOW,
)
OLMO3 = Family(
    _read_olmo3,
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    reads=DENSE_READS | {"attention_bias"},
    layer_kinds=partial(window_but_every, interval=4),
)
GRANITE = Family(
    _read_granite,
    reads=DENSE_READS
    | {
        "attention_bias",
        "mlp_bias",
        "embedding_multiplier",
        "residual_multiplier",
        "attention_multiplier",
        "logits_scaling",
    },
    fixed=NO_WINDOW,
    ignores=UNUSED_WINDOW,
)
