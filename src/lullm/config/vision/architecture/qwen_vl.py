"""Qwen-VL: a tile of nearly a picture's shape, planes of positions. Qwen2-VL (https://arxiv.org/abs/2409.12191),
Qwen2.5-VL, Qwen3-VL, Qwen3.5 and Qwen2.5-Omni (https://arxiv.org/abs/2503.20215).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lullm.config.family.text_model import OMNI_THINKER
from lullm.config.field import integer, optional_object, positive_float, positive_int, shown
from lullm.config.vision.architecture.planes import axes_of, check_patches
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import PATCHES, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.video import TimeWords, VideoConfig, VideoKind
from lullm.config.vision.video_reading import KINDS as VIDEO_KINDS
from lullm.config.vision.video_reading import kind_of_video, read_form
from lullm.config.vision.vision import MLPConnector, VisionConfig
from lullm.errors import ModelLoadError

_BOUNDS = ("size", "min_pixels", "max_pixels")


@dataclass(frozen=True, slots=True)
class _QwenVL:
    """Differences of the architectures. `towers`: values of `model_type`. `size_name`: the tower's key for the size of
    the decoder's rows. `sections`: of a file without `mrope_section`. `takes_turns`: see `axes_of`. `is_deep`: results
    of several layers of the tower are used. `video`: its video processor. `is_timed`: see `positions_per_second`.
    `is_omni`: it is timed by keys of the whole, and the bounds of frames are of Qwen2-VL's code, not of its file.
    """

    towers: tuple[str, ...]
    size_name: str = "out_hidden_size"
    sections: tuple[int, int, int] = (16, 24, 24)
    takes_turns: bool = False
    is_deep: bool = False
    image_token_id: int = 151655
    video_token_id: int = 151656
    video: VideoKind = "Qwen2VL"
    is_timed: bool = False
    is_omni: bool = False


def _of_qwen3(name: str) -> _QwenVL:
    return _QwenVL((f"{name}_vision", name), sections=(24, 20, 20), takes_turns=True, is_deep=True, video="Qwen3VL")


def _of_qwen3_5(name: str) -> _QwenVL:
    return _QwenVL(
        (f"{name}_vision", name),
        sections=(11, 11, 10),
        takes_turns=True,
        image_token_id=248056,
        video_token_id=248057,
        video="Qwen3VL",
    )


QWEN_VL: Mapping[str, _QwenVL] = {
    "Qwen2VLForConditionalGeneration": _QwenVL(("qwen2_vl_vision", "qwen2_vl"), "hidden_size"),
    "Qwen2_5_VLForConditionalGeneration": _QwenVL(("qwen2_5_vl_vision", "qwen2_5_vl"), is_timed=True),
    OMNI_THINKER: _QwenVL(("qwen2_5_omni_vision_encoder",), is_omni=True),
    "Qwen3VLForConditionalGeneration": _of_qwen3("qwen3_vl"),
    "Qwen3VLMoeForConditionalGeneration": _of_qwen3("qwen3_vl_moe"),
    "Qwen3_5ForConditionalGeneration": _of_qwen3_5("qwen3_5"),
    "Qwen3_5MoeForConditionalGeneration": _of_qwen3_5("qwen3_5_moe"),
}


def read_qwen_vl(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """How the architectures in `QWEN_VL` see."""
    known = QWEN_VL[data["architectures"][0]]
    stated, text = optional_object(data, "vision_config"), optional_object(data, "text_config") or data
    tower = read_tower(stated, known.towers, None, drops_first=False)
    if tower.deep_layers and not known.is_deep:
        raise ModelLoadError(
            f"deepstack_visual_indexes {shown(list(tower.deep_layers))} of its tower are not implemented"
        )
    factor = positive_int(stated, "spatial_merge_size", 2, most=MOST_SCALE)
    if (out_size := positive_int(stated, known.size_name, 3584)) != text.get("hidden_size"):
        raise ModelLoadError(f"its tower's rows have {out_size} elements, the text's {shown(text.get('hidden_size'))}")
    picture = read_picture(processor)
    if picture.fit != "area":
        raise ModelLoadError("its image processor is not Qwen2-VL's")
    check_patches(processor, PATCHES, tower, factor, "image")
    connector = MLPConnector("gelu", has_bias=True, scale_factor=factor, keeps_width=True)
    image_token_id = integer(data, "image_token_id", known.image_token_id)
    axes = axes_of(text, known.sections, known.takes_turns)
    return VisionConfig(tower, connector, picture, image_token_id, "none", axes)


def read_qwen_video(data: dict[str, Any], processor: dict[str, Any], vision: VisionConfig) -> VideoConfig:
    known, tower = QWEN_VL[data["architectures"][0]], vision.tower
    kind = kind_of_video(processor, known.video)
    if kind != known.video:
        raise ModelLoadError(f"its video processor is {kind}'s, not {known.video}'s")
    check_patches(processor, VIDEO_KINDS[kind], tower, vision.connector.scale_factor, "video")
    per_second = None
    if known.is_omni:
        per_second = positive_float(data, "position_id_per_seconds", 25)
        processor = {key: value for key, value in processor.items() if key not in _BOUNDS}
    elif known.is_timed:
        per_second = positive_float(optional_object(data, "vision_config"), "tokens_per_second", 4)
    token_id = integer(data, "video_token_id", known.video_token_id)
    words = None
    if kind == "Qwen3VL":
        words = TimeWords("<|vision_start|>", "<|vision_end|>", "<{:.1f} seconds>", takes_place=True)
    return VideoConfig(read_form(processor, kind), token_id, token_id, words, per_second, known.is_omni)
