"""Reads the config of a tower: `vision_config` of a config.json."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args

from lullm.config.family.keys import COMMON_IGNORES
from lullm.config.field import (
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    boolean,
    optional_object,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.vision.tower_kind import KINDS, OF_LLAVA, TowerKind
from lullm.config.vision.vision import TowerConfig, TowerNorm, TowerTraits, VisionActivation
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)

MOST_EDGE = 1 << 13
"""Pixels. The largest known tile has 980."""
_MOST_SIDES = 512
_MOST_FRAMES = 64
_MOST_POSITIONS = 1 << 20
_CHANNELS = ("num_channels", "in_channels", "in_chans")
"""Three words for the same."""

_IGNORED = COMMON_IGNORES | {
    "projection_dim", "initializer_factor", "dropout", "vocab_size", "logit_scale_init_value", "vision_use_head",
    "size", "max_image_size", "use_base_siglip", "tie_word_embeddings", "dtype", "torch_dtype", "architectures",
    "use_export_friendly", "bos_token_id", "eos_token_id", "cross_attention_hidden_size", "add_cross_attention",
    "is_encoder_decoder", "tie_encoder_decoder", "encoder_no_repeat_ngram_size", "is_composition",
    "projection_dropout", "use_mask_token", "layer_scale_init_value", "out_hidden_size", "tokens_per_second",
    "spatial_patch_size", "temporal_patch_size", "drop_path_rate", "use_flash_attn",
    "image_size", "max_position_embeddings",
}  # fmt: skip


def read_tower(
    data: dict[str, Any] | None, kinds: tuple[str, ...], feature_layer: int | None, drops_first: bool
) -> TowerConfig:
    """The tower of a `vision_config`; None: the file has none.

    Args:
        kinds: the values of `model_type` that the model may have; the first one if it has none.
        feature_layer: number of the layer whose results are used, as Python counts, 0 is the embedding; None: the last
            one's, with the norm after it if there is one.

    Raises ModelLoadError: a value is not implemented.
    """
    stated = OF_LLAVA if data is None and kinds[0] == "clip_vision_model" else data or {}
    name = stated.get("model_type", kinds[0])
    if name not in kinds:
        raise ModelLoadError(f"its tower is {shown(name)}, and only {', '.join(kinds)} are known here")
    kind = KINDS[name]
    data = _with_defaults(stated, kind)
    size, heads = _heads(data)
    num_layers = positive_int(data, "num_hidden_layers", most=MOST_LAYERS)
    if "mlp_ratio" in data:
        data["intermediate_size"] = int(size * positive_float(data, "mlp_ratio", 4.0, least=1 / size, most=1e6))
    tower = TowerConfig(
        **{each.name: getattr(kind, each.name) for each in fields(TowerTraits)},
        hidden_size=size,
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        num_layers=_num_used(feature_layer, num_layers),
        num_attention_heads=heads,
        patch_size=_edge(data, "patch_size"),
        image_size=_edge(data, "image_size") if "image_size" in data else _table_edge(data),
        hidden_act=_word(data, "hidden_act", VisionActivation),
        layer_norm_eps=positive_float(data, "layer_norm_eps", 1e-6),
        positions=kind.positions if boolean(data, "use_absolute_position_embeddings", True) else "none",
        has_attention_bias=boolean(data, "attention_bias", True),
        post_norm=None if feature_layer is not None or boolean(data, "use_mean_pooling", False) else kind.post_norm,
        norm=_word(data, "norm_type", TowerNorm),
        has_qk_norm=boolean(data, "use_qk_norm", False),
        drops_first=drops_first,
        num_frames=_count(data, "temporal_patch_size", _MOST_FRAMES),
        rope_theta=_theta(data, size // heads) if kind.is_rotary else 0.0,
        window=_window(data),
        full_layers=_numbers(data, "fullatt_block_indexes"),
        deep_layers=_deep_layers(data, num_layers),
        num_positions=_count(data, "position_embedding_size", _MOST_POSITIONS),
        is_clipped=boolean(data, "use_clipped_linears", False),
    )
    _check_patches(tower)
    return tower


def _with_defaults(stated: Mapping[str, Any], kind: TowerKind) -> dict[str, Any]:
    """The keys of this kind, under our names, all with values. Raises ModelLoadError: pixels have no three channels."""
    data = {kind.names.get(key, key): value for key, value in stated.items()}
    unknown = sorted(data.keys() - kind.defaults.keys() - _IGNORED - {*_CHANNELS})
    if unknown:
        logger.warning("config.json: vision_config: ignored, nothing is known about them: %s", ", ".join(unknown))
    for name in _CHANNELS:
        if data.get(name) not in (None, 3):
            raise ModelLoadError(f"{name} {shown(data[name])} is not 3")
    given = {key: value for key, value in data.items() if key in kind.defaults and value is not None}
    return {"norm_type": "layer_norm", **kind.defaults, **given, **kind.fixed}


def _word(data: dict[str, Any], name: str, words: Any) -> Any:
    """One of the words of a `Literal`. Raises ModelLoadError: it is another."""
    if (word := data[name]) not in get_args(words):
        raise ModelLoadError(f"its tower's {name} is {shown(word)}")
    return word


def _heads(data: dict[str, Any]) -> tuple[int, int]:
    """Elements of a row, and the heads that share them. Raises ModelLoadError."""
    size = positive_int(data, "hidden_size", most=MOST_HIDDEN)
    heads = positive_int(data, "num_attention_heads", most=MOST_HEADS)
    if size % heads:
        raise ModelLoadError(f"its tower's hidden_size {size} is not a multiple of num_attention_heads {heads}")
    if (kv_heads := data.get("num_key_value_heads", heads)) != heads:
        raise ModelLoadError(f"its tower's num_key_value_heads {shown(kv_heads)} are not num_attention_heads {heads}")
    return size, heads


def _num_used(feature_layer: int | None, num_layers: int) -> int:
    """The layers up to the one whose results are used. Raises ModelLoadError: there is no such layer."""
    if feature_layer is None:
        return num_layers
    num_used = num_layers + 1 + feature_layer if feature_layer < 0 else feature_layer
    if not 0 <= num_used <= num_layers:
        raise ModelLoadError(f"vision_feature_layer {feature_layer} is not in a tower of {num_layers} layers")
    return num_used


def _check_patches(tower: TowerConfig) -> None:
    """Raises ModelLoadError: pictures as large as the positions are for have no patches, or too many."""
    if tower.image_size and tower.patch_size > tower.image_size:
        raise ModelLoadError(f"its tower's patch_size {tower.patch_size} is above image_size {tower.image_size}")
    if tower.num_sides > _MOST_SIDES:
        raise ModelLoadError(f"its tower has {tower.num_sides} patches on a side, more than {_MOST_SIDES}")


def _count(data: dict[str, Any], name: str, most: int) -> int:
    """0: this kind of tower has no such key."""
    return positive_int(data, name, most=most) if name in data else 0


def _edge(data: dict[str, Any], name: str) -> int:
    """A number of pixels, or a list of two equal ones."""
    value = data[name]
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise ModelLoadError(f"its tower's {name} {shown(value)} is not a square")
        value = value[0]
    return positive_int({name: value}, name, most=MOST_EDGE)


def _theta(data: dict[str, Any], head_dim: int) -> float:
    """The base frequency of heads that rotate by line and column. Raises ModelLoadError."""
    parameters = optional_object(data, "rope_parameters")
    rope_type = parameters.get("rope_type", "axial")
    is_axial = rope_type in ("axial", "default")  # what files said before there was a word for it
    if not is_axial or (others := parameters.keys() - {"rope_type", "rope_theta"}):
        what = ", ".join(sorted(others)) if is_axial else f"rope_type {shown(rope_type)}"
        raise ModelLoadError(f"its tower's rope_parameters hold {what}")
    if data.get("head_dim") not in (None, head_dim):
        raise ModelLoadError(
            f"its tower's head_dim {shown(data['head_dim'])} is not {head_dim}, a head's share of a row"
        )
    if head_dim % 4:
        raise ModelLoadError(f"its tower's heads of {head_dim} elements have no equal pairs for lines and columns")
    return positive_float({**data, **parameters}, "rope_theta", 10000.0, least=1.1, most=1e18)


def _window(data: dict[str, Any]) -> int:
    """Patches on a side of a window: whole groups of those that become one row."""
    if "window_size" not in data:
        return 0
    group = positive_int(data, "spatial_merge_size", most=_MOST_SIDES)
    num_groups = positive_int(data, "window_size", most=MOST_EDGE) // group // _edge(data, "patch_size")
    if not num_groups:
        raise ModelLoadError(f"its tower's window_size {shown(data['window_size'])} is less than a row's pixels")
    return num_groups * group


def _table_edge(data: dict[str, Any]) -> int:
    """Pixels on an edge of what a square table of positions is for; 0: there is none."""
    if "num_position_embeddings" not in data:
        return 0
    number = positive_int(data, "num_position_embeddings", most=_MOST_SIDES**2)
    if math.isqrt(number) ** 2 != number:
        raise ModelLoadError(f"its tower's num_position_embeddings {number} are no square")
    return math.isqrt(number) * _edge(data, "patch_size")


def _deep_layers(data: dict[str, Any], num_layers: int) -> tuple[int, ...]:
    layers = _numbers(data, "deepstack_visual_indexes")
    if list(layers) != sorted(set(layers)) or not all(0 <= layer < num_layers for layer in layers):
        raise ModelLoadError(f"its tower's deepstack_visual_indexes {shown(layers)} are no ascending layers of it")
    return layers


def _numbers(data: dict[str, Any], name: str) -> tuple[int, ...]:
    """Numbers of layers; a kind without them: none."""
    layers = data.get(name, [])
    if not isinstance(layers, list) or not all(isinstance(one, int) and not isinstance(one, bool) for one in layers):
        raise ModelLoadError(f"its tower's {name} {shown(layers)} are no numbers of layers")
    return tuple(layers)
