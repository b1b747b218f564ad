"""Gemma: rows of a picture see each other."""

import math
from typing import Any

from lullm.config.field import integer, optional_object, positive_int
from lullm.config.vision.picture import read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import PoolConnector, VisionConfig
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
