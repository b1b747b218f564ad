"""GLM-4.1V, GLM-4.5V and GLM-4.6V (https://arxiv.org/abs/2507.01006): a tile of nearly a picture's shape, planes of
positions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lullm.config.field import MOST_INTERMEDIATE, integer, optional_object, positive_int, shown
from lullm.config.vision.architecture.planes import axes_of, check_patches
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import PATCHES, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.video import TimeWords, VideoConfig, VideoKind
from lullm.config.vision.video_reading import KINDS as VIDEO_KINDS
from lullm.config.vision.video_reading import kind_of_video, read_form
from lullm.config.vision.vision import GatedConnector, TowerConfig, VisionConfig
from lullm.errors import ModelLoadError

GLM_V: Mapping[str, int] = {
    "Glm4vForConditionalGeneration": 151343,
    "Glm46VForConditionalGeneration": 151343,
    "Glm4vMoeForConditionalGeneration": 151363,
}
"""The id of a picture's token, of a file that does not say it."""
_OFFSET_OF_VIDEOS = 1
"""From that id to the one of a video's token."""
_SECONDS = {"Glm4v": TimeWords("<|begin_of_image|>", "<|end_of_image|>", "{}", True, of_first=True, is_whole=True)}
_SECONDS["Glm46V"] = replace(_SECONDS["Glm4v"], text="{:.1f} seconds", is_whole=False)
_FRAMES = 2
"""The frames of a tile, for which transformers counts its seconds."""
_TOWERS = ("glm4v_vision", "glm4v", "glm4v_moe_vision", "glm4v_moe")
_SECTIONS = (8, 12, 12)


def read_glm_v(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """How the architectures in `GLM_V` see."""
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
    image_token_id = integer(data, "image_token_id", GLM_V[data["architectures"][0]])
    return _seen(data, processor, tower, connector, image_token_id)


def read_glm_ocr(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """GLM-OCR: the same with norms on the tower's heads, biases, and no table of positions."""
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config")
    tower = read_tower(stated, ("glm_ocr_vision",), None, drops_first=False)
    if not tower.has_attention_bias:
        raise ModelLoadError("its tower's attention_bias is false, and only true is implemented")
    size = positive_int(stated, "out_hidden_size", 1536, most=MOST_INTERMEDIATE)
    if size != text.get("hidden_size"):
        raise ModelLoadError(f"its tower's rows have {size} elements, the text's {shown(text.get('hidden_size'))}")
    connector = GatedConnector(positive_int(stated, "spatial_merge_size", 2, most=MOST_SCALE), 3 * size)
    return _seen(data, processor, tower, connector, integer(data, "image_token_id", 59280))


def _seen(
    data: dict[str, Any], processor: dict[str, Any], tower: TowerConfig, connector: GatedConnector, token_id: int
) -> VisionConfig:
    picture = read_picture(processor)
    if picture.fit != "volume":
        raise ModelLoadError("its image processor is not GLM-4.1V's")
    check_patches(processor, PATCHES, tower, connector.scale_factor, "image")
    axes = axes_of(optional_object(data, "text_config"), _SECTIONS, takes_turns=False)
    return VisionConfig(tower, connector, picture, token_id, "none", axes)


def read_glm_video(data: dict[str, Any], processor: dict[str, Any], vision: VisionConfig) -> VideoConfig:
    """GLM-4.6V has GLM-4.5V's architecture and a video processor of its own."""
    name = data["architectures"][0]
    is_newer = name.startswith("Glm46V") or str(processor.get("processor_class")).startswith("Glm46V")
    default: VideoKind = "Glm46V" if is_newer else "Glm4v"
    kind = kind_of_video(processor, default)
    if kind not in _SECONDS:
        raise ModelLoadError(f"its video processor is {kind}'s, not GLM-4.1V's")
    check_patches(processor, VIDEO_KINDS[kind], vision.tower, vision.connector.scale_factor, "video")
    if vision.tower.num_frames != _FRAMES:
        raise ModelLoadError(f"temporal_patch_size {vision.tower.num_frames} of videos is not {_FRAMES}")
    token_id = integer(data, "video_token_id", GLM_V[name] + _OFFSET_OF_VIDEOS)
    return VideoConfig(read_form(processor, kind), token_id, vision.image_token_id, _SECONDS[kind], None)
