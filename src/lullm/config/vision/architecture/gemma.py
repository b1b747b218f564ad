"""Gemma: rows of a picture see each other."""

import math
from typing import Any

from lullm.config.field import boolean, integer, optional_object, positive_int
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import MeanConnector, PoolConnector, VisionConfig
from lullm.errors import ModelLoadError


def read_gemma3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    tower = read_tower(optional_object(data, "vision_config"), ("siglip_vision_model",), None, drops_first=False)
    num_rows = positive_int(data, "mm_tokens_per_image", 256)
    num_sides = math.isqrt(num_rows)
    if num_sides**2 != num_rows or tower.num_sides % num_sides:
        raise ModelLoadError(
            f"mm_tokens_per_image {num_rows} are no groups of the {tower.num_sides} x {tower.num_sides} patches"
        )
    # Its processor passes the file's values of these keys over.
    picture = read_picture({key: value for key, value in processor.items() if "pan_and_scan" not in key})
    if picture.fit != "scan":
        raise ModelLoadError("its image processor is not Gemma 3's")
    ids = (("image_token", 262144), ("boi_token", 255999), ("eoi_token", 256000))
    image_id, place_id, end_id = (integer(data, f"{name}_id", integer(data, f"{name}_index", own)) for name, own in ids)
    connector = PoolConnector(tower.num_sides // num_sides, tower.layer_norm_eps)
    return VisionConfig(
        tower,
        connector,
        picture,
        image_id,
        "words",
        place_token_id=place_id,
        end_token_id=end_id,
        is_mutual=True,
    )


def read_gemma4(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config")
    if not stated:
        raise ModelLoadError("its config.json has no vision_config")
    tower = read_tower(stated, ("gemma4_vision",), None, drops_first=False)
    factor = positive_int(stated, "pooling_kernel_size", 3, most=MOST_SCALE)
    picture = read_picture(processor)
    if picture.fit != "budget":
        raise ModelLoadError("its image processor is not Gemma 4's")
    if picture.edge != tower.patch_size * factor or picture.stated.get("patch_size", 16) != tower.patch_size:
        raise ModelLoadError(
            f"its tower makes a row of {factor} patches of {tower.patch_size} pixels on an edge, its image processor "
            "of others"
        )
    ids = (("image_token_id", 258880), ("boi_token_id", 255999), ("eoi_token_id", 258882))
    image_id, begin_id, end_id = (integer(data, name, own) for name, own in ids)
    scale, is_standardized = tower.hidden_size**0.5, boolean(stated, "standardize", False)
    # Otherwise its rows are tokens like others ("all" is refused with the text model).
    is_mutual = text.get("use_bidirectional_attention") == "vision"
    return VisionConfig(
        tower,
        MeanConnector(factor, scale, tower.layer_norm_eps, is_standardized),
        picture,
        image_id,
        "marks",
        begin_token_id=begin_id,
        end_token_id=end_id,
        is_mutual=is_mutual,
        in_windows=is_mutual,
    )
