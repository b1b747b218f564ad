"""Reads the config of a tower: `vision_config` of a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast, get_args

from lullm.config.family.keys import COMMON_IGNORES
from lullm.config.field import (
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    boolean,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.vision.vision import Positions, TowerConfig, TowerNorm, VisionActivation
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)

MOST_EDGE = 1 << 13
"""Pixels. The largest known tile has 980."""
_MOST_SIDES = 512

_CLIP: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
}  # fmt: skip
_SIGLIP = _CLIP | {"patch_size": 16, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
_IDEFICS3 = _SIGLIP | {"hidden_size": 1152, "num_attention_heads": 16, "patch_size": 32}
_OF_LLAVA = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""Of a LLaVA file without a `vision_config`."""
_INTERNVIT = _OF_LLAVA | {
    "image_size": 448, "hidden_act": "gelu", "layer_norm_eps": 1e-6, "attention_bias": False, "use_qk_norm": False,
    "norm_type": "layer_norm", "use_absolute_position_embeddings": True, "use_mean_pooling": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a `model_type` means. `defaults`: the values of missing keys, as in transformers' config classes; a key that
    is not among them is not read. The rest: see TowerConfig.
    """

    defaults: Mapping[str, Any]
    positions: Positions = "each"
    has_class_row: bool = False
    is_batched: bool = False
    has_patch_bias: bool = True
    has_pre_norm: bool = False
    has_scales: bool = False


_IDEFICS3_KIND = _Kind(_IDEFICS3, "nearest")
_KINDS: Mapping[str, _Kind] = {
    "clip_vision_model": _Kind(_CLIP, has_class_row=True, has_patch_bias=False, has_pre_norm=True),
    "siglip_vision_model": _Kind(_SIGLIP),
    "idefics3_vision": _IDEFICS3_KIND,
    "idefics3": _IDEFICS3_KIND,
    "smolvlm_vision": _IDEFICS3_KIND,
    "internvl_vision": _Kind(_INTERNVIT, has_class_row=True, is_batched=True, has_scales=True),
}
_IGNORED = COMMON_IGNORES | {
    "projection_dim", "initializer_factor", "dropout", "vocab_size", "logit_scale_init_value", "vision_use_head",
    "size", "max_image_size", "use_base_siglip", "tie_word_embeddings", "dtype", "torch_dtype", "architectures",
    "use_export_friendly", "bos_token_id", "eos_token_id", "cross_attention_hidden_size", "add_cross_attention",
    "is_encoder_decoder", "tie_encoder_decoder", "encoder_no_repeat_ngram_size", "is_composition",
    "projection_dropout", "use_mask_token", "layer_scale_init_value",
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
    data = dict(_OF_LLAVA if data is None and kinds[0] == "clip_vision_model" else data or {})
    kind = data.get("model_type", kinds[0])
    if kind not in kinds:
        raise ModelLoadError(f"its tower is {shown(kind)}, and only {', '.join(kinds)} are known here")
    own = _KINDS[kind]
    known = own.defaults
    unknown = sorted(data.keys() - known.keys() - _IGNORED - {"num_channels"})
    if unknown:
        logger.warning("config.json: vision_config: ignored, nothing is known about them: %s", ", ".join(unknown))
    if data.get("num_channels") not in (None, 3):
        raise ModelLoadError(f"num_channels {shown(data['num_channels'])} is not 3")
    data = {key: default if data.get(key) is None else data[key] for key, default in known.items()}
    activation, norm = data["hidden_act"], data.get("norm_type", "layer_norm")
    if activation not in get_args(VisionActivation):
        raise ModelLoadError(f"its tower's hidden_act is {shown(activation)}")
    if norm not in get_args(TowerNorm):
        raise ModelLoadError(f"its tower's norm_type is {shown(norm)}")
    size, heads = (
        positive_int(data, "hidden_size", most=MOST_HIDDEN),
        positive_int(data, "num_attention_heads", most=MOST_HEADS),
    )
    if size % heads:
        raise ModelLoadError(f"its tower's hidden_size {size} is not a multiple of num_attention_heads {heads}")
    num_layers = positive_int(data, "num_hidden_layers", most=MOST_LAYERS)
    num_used = num_layers if feature_layer is None else feature_layer
    num_used = num_layers + 1 + num_used if num_used < 0 else num_used
    if not 0 <= num_used <= num_layers:
        raise ModelLoadError(f"vision_feature_layer {feature_layer} is not in a tower of {num_layers} layers")
    tower = TowerConfig(
        hidden_size=size,
        intermediate_size=positive_int(data, "intermediate_size", most=MOST_INTERMEDIATE),
        num_layers=num_used,
        num_attention_heads=heads,
        patch_size=_edge(data, "patch_size"),
        image_size=_edge(data, "image_size"),
        hidden_act=cast(VisionActivation, activation),
        layer_norm_eps=positive_float(data, "layer_norm_eps", 1e-6),
        positions=own.positions if boolean(data, "use_absolute_position_embeddings", True) else "none",
        has_class_row=own.has_class_row,
        is_batched=own.is_batched,
        has_patch_bias=own.has_patch_bias,
        has_attention_bias=boolean(data, "attention_bias", True),
        has_pre_norm=own.has_pre_norm,
        has_post_norm=feature_layer is None and not boolean(data, "use_mean_pooling", False),
        norm=cast(TowerNorm, norm),
        has_qk_norm=boolean(data, "use_qk_norm", False),
        has_scales=own.has_scales,
        drops_first=drops_first,
    )
    if tower.patch_size > tower.image_size:
        raise ModelLoadError(f"its tower's patch_size {tower.patch_size} is above image_size {tower.image_size}")
    if tower.num_sides > _MOST_SIDES:
        raise ModelLoadError(f"its tower has {tower.num_sides} patches on a side, more than {_MOST_SIDES}")
    return tower


def _edge(data: dict[str, Any], name: str) -> int:
    """A number of pixels, or a list of two equal ones."""
    value = data[name]
    if isinstance(value, list):
        if len(value) != 2 or value[0] != value[1]:
            raise ModelLoadError(f"its tower's {name} {shown(value)} is not a square")
        value = value[0]
    return positive_int({name: value}, name, most=MOST_EDGE)
