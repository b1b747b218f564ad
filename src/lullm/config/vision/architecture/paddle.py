"""PaddleOCR-VL (https://arxiv.org/abs/2510.14528): SigLIP's tower for pictures of any shape, planes of positions."""

from typing import Any

from lullm.config.field import integer, optional_object, positive_int
from lullm.config.vision.architecture.planes import axes_of, check_patches
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import PADDLE_PATCHES, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import MLPConnector, VisionConfig
from lullm.errors import ModelLoadError

_SECTIONS = (16, 24, 24)
_IMAGE_TOKEN_ID = 100295


def read_paddle_ocr(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """How it sees. Published files have the text's keys beside `vision_config`."""
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config") or data
    tower = read_tower(stated, ("paddleocr_vl_vision", "paddleocr_vl"), None, drops_first=False)
    picture = read_picture(processor)
    if picture.fit != "area" or not picture.widens:
        raise ModelLoadError("its image processor is not PaddleOCR-VL's")
    factor = positive_int(stated, "spatial_merge_size", 2, most=MOST_SCALE)
    check_patches(processor, PADDLE_PATCHES, tower, factor, "image")
    connector = MLPConnector(
        "gelu", has_bias=True, has_norm=True, scale_factor=factor, keeps_width=True, norms_patches=True
    )
    token_id = integer(data, "image_token_id", _IMAGE_TOKEN_ID)
    return VisionConfig(tower, connector, picture, token_id, "none", axes_of(text, _SECTIONS, takes_turns=False))
