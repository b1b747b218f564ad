"""GLM-4.1V, GLM-4.5V and GLM-4.6V (https://arxiv.org/abs/2507.01006): a tile of nearly a picture's shape, planes of
positions.
"""

from collections.abc import Mapping
from typing import Any

from lullm.config.field import MOST_INTERMEDIATE, integer, optional_object, positive_int, shown
from lullm.config.vision.architecture.planes import axes_of, check_patches
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import PATCHES, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.vision import GatedConnector, VisionConfig
from lullm.errors import ModelLoadError

GLM_V: Mapping[str, int] = {
    "Glm4vForConditionalGeneration": 151343,
    "Glm46VForConditionalGeneration": 151343,
    "Glm4vMoeForConditionalGeneration": 151363,
}
"""The id of a picture's token, of a file that does not say it."""
_TOWERS = ("glm4v_vision", "glm4v", "glm4v_moe_vision", "glm4v_moe")
_SECTIONS = (8, 12, 12)


def read_glm_v(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """Of all architectures in `GLM_V`."""
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config")
    tower = read_tower(stated, _TOWERS, None, drops_first=False)
    if tower.intermediate_size != text.get("hidden_size"):
        raise ModelLoadError(
            f"its tower's rows have {tower.intermediate_size} elements, the text's {shown(text.get('hidden_size'))}"
        )
    connector = GatedConnector(
        positive_int(stated, "spatial_merge_size", 2, most=MOST_SCALE),
        positive_int(stated, "intermediate_size", 13696, most=MOST_INTERMEDIATE),
    )
    picture = read_picture(processor)
    if picture.fit != "volume":
        raise ModelLoadError("its image processor is not GLM-4.1V's")
    check_patches(processor, PATCHES, tower, connector.scale_factor, "image")
    image_token_id = integer(data, "image_token_id", GLM_V[data["architectures"][0]])
    return VisionConfig(tower, connector, picture, image_token_id, "none", axes_of(text, _SECTIONS, takes_turns=False))
