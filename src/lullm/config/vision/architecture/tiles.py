"""Models that cut pictures into a grid of squares: Idefics3, SmolVLM and InternVL."""

from typing import Any

from lullm.config.field import integer, optional_object, positive_float, positive_int, shown
from lullm.config.vision.architecture.shared import MOST_SCALE, activation, feature_layer
from lullm.config.vision.internvl_chat import processor_of
from lullm.config.vision.picture import read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import MLPConnector, ShuffleConnector, VisionConfig
from lullm.errors import ModelLoadError

_IDEFICS3_TOWERS = ("idefics3_vision", "idefics3", "smolvlm_vision")
_INTERNVL_TOWERS = ("internvl_vision", "intern_vit_6b")


def read_idefics3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    tower = read_tower(optional_object(data, "vision_config"), _IDEFICS3_TOWERS, None, drops_first=False)
    connector = ShuffleConnector(positive_int(data, "scale_factor", 2, most=MOST_SCALE))
    vision = VisionConfig(tower, connector, read_picture(processor), integer(data, "image_token_id", 128257), "places")
    if vision.picture.fit != "split":
        raise ModelLoadError("its image processor is not Idefics3's")
    return vision


def read_internvl(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    layer, strategy = feature_layer(data, -1), data.get("vision_feature_select_strategy", "default")
    if strategy != "default":  # the row of the whole picture has no neighbours
        raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}")
    # The norm behind the last layer is used if that layer is called -1, and by no other number (as in transformers).
    stated = optional_object(data, "vision_config") or None
    tower = read_tower(stated, _INTERNVL_TOWERS, None if layer == -1 else layer, drops_first=True)
    ratio = positive_float(data, "downsample_ratio", 0.5)
    factor = round(1 / ratio) if ratio > 1 / MOST_SCALE else 0
    if not factor or factor * ratio != 1.0 or tower.num_sides % factor:
        raise ModelLoadError(
            f"downsample_ratio {shown(ratio)} does not make groups of the {tower.num_sides} x {tower.num_sides} patches"
        )
    connector = MLPConnector(activation(data), has_bias=True, has_norm=True, scale_factor=factor)
    # Its processor always splits, whatever its image processor's file says.
    keys = processor_of(data, processor) if data.get("is_published") else processor | {"crop_to_patches": True}
    picture = read_picture(keys)
    if picture.fit != "grid":
        raise ModelLoadError("its image processor is not GOT-OCR 2's")
    return VisionConfig(tower, connector, picture, integer(data, "image_token_id", 151667), "ends", spells="\n")
