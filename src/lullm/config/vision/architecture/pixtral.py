"""Pixtral and Mistral 3: tiles of any shape, words behind lines of rows. LightOnOCR: the same without these words."""

from dataclasses import replace
from typing import Any

from lullm.config.field import boolean, integer, optional_object, positive_float, positive_int
from lullm.config.vision.architecture.shared import MOST_SCALE, activation, feature_layer
from lullm.config.vision.picture import read_picture
from lullm.config.vision.tower import MOST_EDGE, read_tower
from lullm.config.vision.vision import Connector, MergeConnector, VisionConfig
from lullm.errors import ModelLoadError

UNSTATED = {"image_processor_type": "PixtralImageProcessor"}
"""The image processor of folders without a file of one: Mistral Small 3.2's, and those in Mistral's own layout."""


def read_mistral3(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    text = optional_object(data, "text_config")
    connector = MergeConnector(
        activation(data),
        boolean(data, "multimodal_projector_bias", False),
        positive_int(data, "spatial_merge_size", 2, most=MOST_SCALE),
        positive_float(text, "rms_norm_eps", 1e-5 if text.get("model_type") == "ministral3" else 1e-6),
    )
    return read_pixtral(data, processor, connector, feature_layer(data, -1))


def read_lighton_ocr(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    eps = positive_float(optional_object(data, "text_config"), "rms_norm_eps", 1e-6)
    factor = positive_int(data, "spatial_merge_size", 2, most=MOST_SCALE)
    vision = read_pixtral(data, processor, MergeConnector("gelu", False, factor, eps), -1)
    return replace(vision, image_token_id=integer(data, "image_token_id", 151655), frame="none")


def read_pixtral(data: dict[str, Any], processor: dict[str, Any], connector: Connector, layer: int) -> VisionConfig:
    stated = optional_object(data, "vision_config")
    tower = read_tower(stated, ("pixtral",), layer, drops_first=False)
    if processor is UNSTATED:
        edge = positive_int(stated, "image_size", 1540, most=MOST_EDGE)
        processor = processor | {"size": {"longest_edge": edge}}
    # Its processor makes edges multiples of what a row sees, whatever its image processor's file says.
    picture = read_picture(processor | {"patch_size": tower.patch_size * connector.scale_factor})
    if picture.fit != "within":
        raise ModelLoadError("its image processor is not Pixtral's")
    image_id = integer(data, "image_token_id", integer(data, "image_token_index", 10))
    return VisionConfig(tower, connector, picture, image_id, "lines")
