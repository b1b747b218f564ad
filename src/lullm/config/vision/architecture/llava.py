"""LLaVA's kind: one tile, or a grid of squares that a picture is fitted into."""

import re
from typing import Any

from lullm.config.field import boolean, integer, optional_object, shown
from lullm.config.json_file import PROCESSOR_FILES
from lullm.config.vision.architecture.pixtral import UNSTATED, read_pixtral
from lullm.config.vision.architecture.shared import activation, feature_layer
from lullm.config.vision.picture import KINDS, grids_of, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import MLPConnector, VisionConfig
from lullm.errors import ModelLoadError

ONEVISION = "LlavaOnevisionForConditionalGeneration"
_TOWERS = ("clip_vision_model", "siglip_vision_model")


def read_llava(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    layer, strategy = feature_layer(data, -2), data.get("vision_feature_select_strategy", "default")
    if strategy not in ("default", "full"):
        raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}")
    stated = optional_object(data, "vision_config") or None
    connector = MLPConnector(activation(data), boolean(data, "multimodal_projector_bias", True))
    if stated is not None and stated.get("model_type") == "pixtral":
        if strategy != "full":  # it has no row of the whole picture, which could be left out
            raise ModelLoadError(f"vision_feature_select_strategy is {shown(strategy)}, and its tower is Pixtral's")
        return read_pixtral(data, processor, connector, layer)
    if processor is UNSTATED:
        raise ModelLoadError(f"its folder has no {' and no '.join(PROCESSOR_FILES)}")
    tower = read_tower(stated, _TOWERS, layer, strategy == "default")
    image_token_id = integer(data, "image_token_id", integer(data, "image_token_index", 32000))
    return VisionConfig(tower, connector, read_picture(processor), image_token_id, "none")


def read_llava_next(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    is_newer = data["architectures"][0] == ONEVISION
    stated = optional_object(data, "vision_config") or None
    strategy = data.get("vision_feature_select_strategy", "full" if is_newer else "default")
    towers = _TOWERS[1:] if is_newer else _TOWERS
    layer = feature_layer(data, -1 if is_newer else -2)
    tower = read_tower(stated, towers, layer, strategy == "default")
    if strategy not in ("default", "full") or tower.drops_first != tower.has_class_row:
        raise ModelLoadError(
            f"vision_feature_select_strategy is {shown(strategy)}, and a square has rows beside a grid's"
        )
    picture = read_picture(processor)
    kind = "LlavaOnevision" if is_newer else "LlavaNext"
    if picture.fit != "anyres":
        raise ModelLoadError("its image processor is not LLaVA-NeXT's")
    pinpoints = data.get("image_grid_pinpoints") or KINDS[kind].defaults["image_grid_pinpoints"]
    if grids_of(pinpoints, picture.edge) != picture.grids:
        raise ModelLoadError("image_grid_pinpoints of its image processor are not those of config.json")
    aspect = data.get("vision_aspect_ratio", "anyres_max_9")
    match = re.fullmatch(r"anyres_max_([1-9]\d{0,2})", aspect) if isinstance(aspect, str) else None
    if is_newer and match is None:
        raise ModelLoadError(f"vision_aspect_ratio is {shown(aspect)}")
    return VisionConfig(
        tower,
        MLPConnector(activation(data), boolean(data, "multimodal_projector_bias", True)),
        picture,
        integer(data, "image_token_id", integer(data, "image_token_index", 151646 if is_newer else 32000)),
        "none",
        has_newline=True,
        max_squares=int(match[1]) if is_newer and match else 0,
    )
