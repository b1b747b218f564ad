"""Phi-4-multimodal (https://arxiv.org/abs/2503.01743): SigLIP's tower over a grid of squares and the whole picture."""

from typing import Any

from lullm.config.field import integer, optional_object, positive_int, shown
from lullm.config.vision.architecture.shared import feature_layer
from lullm.config.vision.picture import read_picture
from lullm.config.vision.tower import MOST_EDGE, read_tower
from lullm.config.vision.vision import MosaicConnector, VisionConfig
from lullm.errors import ModelLoadError

_IMAGE_TOKEN_ID = 200010
_FACTOR = 2


def read_phi4(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    stated = optional_object(data, "vision_config")
    layer = feature_layer({"vision_feature_layer": stated.get("feature_layer", -2)}, -2)
    tower = read_tower(stated, ("phi4_multimodal_vision",), layer, drops_first=False)
    picture = read_picture(processor)
    if picture.fit != "corner":
        raise ModelLoadError("its image processor is not Phi-4-multimodal's")
    if positive_int(stated, "crop_size", 448, most=MOST_EDGE) != picture.edge:
        raise ModelLoadError(f"crop_size {shown(stated['crop_size'])} is not its image processor's {picture.edge}")
    if tower.image_size != picture.edge or picture.edge % (tower.patch_size * _FACTOR):
        raise ModelLoadError(
            f"its tower reads {tower.image_size} pixels in patches of {tower.patch_size}, and its image processor's "
            f"squares of {picture.edge} are no even number of them"
        )
    if (own := processor.get("patch_size")) not in (None, tower.patch_size):
        raise ModelLoadError(f"patch_size {shown(own)} of its image processor is not the tower's {tower.patch_size}")
    token_id = integer(stated, "image_token_id", _IMAGE_TOKEN_ID)
    return VisionConfig(
        tower, MosaicConnector(_FACTOR), picture, token_id, "none", spells="", numbered=r"<\|image_\d+\|>"
    )
