"""Reads the config of a tower: `vision_config` of a config.json."""

from collections.abc import Mapping
from typing import Any, cast, get_args

from lullm.config.family.keys import COMMON_IGNORES
from lullm.config.field import (
    MOST_HEADS,
    MOST_HIDDEN,
    MOST_INTERMEDIATE,
    MOST_LAYERS,
    positive_float,
    positive_int,
    shown,
)
from lullm.config.vision.vision import TowerConfig, VisionActivation
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
TOWER_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "clip_vision_model": _CLIP,
    "siglip_vision_model": _SIGLIP,
    "idefics3_vision": _IDEFICS3,
    "idefics3": _IDEFICS3,
    "smolvlm_vision": _IDEFICS3,
}
"""By `model_type`: the values of missing keys, as in transformers' config classes."""
_OF_LLAVA = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": 336, "patch_size": 14,
}  # fmt: skip
"""Of a LLaVA file without a `vision_config`."""
_IGNORED = COMMON_IGNORES | {
    "projection_dim", "initializer_factor", "dropout", "vocab_size", "logit_scale_init_value", "vision_use_head",
    "size", "max_image_size", "use_base_siglip", "tie_word_embeddings", "dtype", "torch_dtype", "architectures",
    "use_export_friendly", "bos_token_id", "eos_token_id", "cross_attention_hidden_size", "add_cross_attention",
    "is_encoder_decoder", "tie_encoder_decoder", "encoder_no_repeat_ngram_size", "is_composition",
}  # fmt: skip


def read_tower(
    data: dict[str, Any] | None, kinds: tuple[str, ...], feature_layer: int | None, drops_first: bool
) -> TowerConfig:
    """The tower of a `vision_config`; None: the file has none.

    Args:
        kinds: the values of `model_type` that the model may have; the first one if it has none.
        feature_layer: number of the layer whose results are used, as Python counts, 0 is the embedding; None: the last
            one's, with the norm after it.

    Raises ModelLoadError: a value is not implemented.
    """
    data = dict(_OF_LLAVA if data is None and kinds[0] == "clip_vision_model" else data or {})
    kind = data.get("model_type", kinds[0])
    if kind not in kinds:
        raise ModelLoadError(f"its tower is {shown(kind)}, and only {', '.join(kinds)} are known here")
    known = TOWER_DEFAULTS[kind]
    unknown = sorted(data.keys() - known.keys() - _IGNORED - {"num_channels"})
    if unknown:
        logger.warning("config.json: vision_config: ignored, nothing is known about them: %s", ", ".join(unknown))
    data = {**known, **{key: value for key, value in data.items() if value is not None}}
    if data.get("num_channels", 3) != 3:
        raise ModelLoadError(f"num_channels {shown(data['num_channels'])} is not 3")
    activation = data["hidden_act"]
    if activation not in get_args(VisionActivation):
        raise ModelLoadError(f"its tower's hidden_act is {shown(activation)}")
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
        patch_size=positive_int(data, "patch_size", most=MOST_EDGE),
        image_size=positive_int(data, "image_size", most=MOST_EDGE),
        hidden_act=cast(VisionActivation, activation),
        layer_norm_eps=positive_float(data, "layer_norm_eps", 1e-6),
        is_clip=kind == "clip_vision_model",
        has_post_norm=feature_layer is None,
        drops_first=drops_first,
    )
    if tower.patch_size > tower.image_size:
        raise ModelLoadError(f"its tower's patch_size {tower.patch_size} is above image_size {tower.image_size}")
    if tower.num_sides > _MOST_SIDES:
        raise ModelLoadError(f"its tower has {tower.num_sides} patches on a side, more than {_MOST_SIDES}")
    return tower
