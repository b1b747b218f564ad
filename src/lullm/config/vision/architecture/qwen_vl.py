"""Qwen-VL: a tile of nearly a picture's shape, planes of positions. Qwen2-VL (https://arxiv.org/abs/2409.12191),
Qwen2.5-VL, Qwen3-VL and Qwen3.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lullm.config.field import MOST_HEAD_DIM, boolean, integer, optional_object, positive_float, positive_int, shown
from lullm.config.vision.architecture.shared import MOST_SCALE
from lullm.config.vision.picture import PATCHES, read_picture
from lullm.config.vision.tower import read_tower
from lullm.config.vision.video import VideoConfig, VideoKind
from lullm.config.vision.video_reading import KINDS as VIDEO_KINDS
from lullm.config.vision.video_reading import kind_of_video, read_form
from lullm.config.vision.vision import MLPConnector, TowerConfig, VisionConfig
from lullm.errors import ModelLoadError


@dataclass(frozen=True, slots=True)
class _QwenVL:
    """Differences of the architectures. `towers`: values of `model_type`. `size_name`: the tower's key for the size of
    the decoder's rows. `sections`: of a file without `mrope_section`. `takes_turns`: see `_axes`. `is_deep`: results of
    several layers of the tower are used. `video`: its video processor. `is_timed`: see `positions_per_second`.
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
    "Qwen3VLForConditionalGeneration": _of_qwen3("qwen3_vl"),
    "Qwen3VLMoeForConditionalGeneration": _of_qwen3("qwen3_vl_moe"),
    "Qwen3_5ForConditionalGeneration": _of_qwen3_5("qwen3_5"),
    "Qwen3_5MoeForConditionalGeneration": _of_qwen3_5("qwen3_5_moe"),
}


def read_qwen_vl(data: dict[str, Any], processor: dict[str, Any]) -> VisionConfig:
    """Of all architectures in `QWEN_VL`."""
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
    _check_patches({**PATCHES, **_stated(processor)}, tower, factor, "image")
    connector = MLPConnector("gelu", has_bias=True, scale_factor=factor, keeps_width=True)
    image_token_id = integer(data, "image_token_id", known.image_token_id)
    return VisionConfig(tower, connector, picture, image_token_id, "none", _axes(text, known))


def read_qwen_video(data: dict[str, Any], processor: dict[str, Any], vision: VisionConfig) -> VideoConfig:
    known, tower = QWEN_VL[data["architectures"][0]], vision.tower
    kind = kind_of_video(processor, known.video)
    if kind != known.video:
        raise ModelLoadError(f"its video processor is {kind}'s, not {known.video}'s")
    _check_patches({**VIDEO_KINDS[kind], **_stated(processor)}, tower, vision.connector.scale_factor, "video")
    per_second = None
    if known.is_timed:
        per_second = positive_float(optional_object(data, "vision_config"), "tokens_per_second", 4)
    token_id = integer(data, "video_token_id", known.video_token_id)
    return VideoConfig(read_form(processor, kind), token_id, kind == "Qwen3VL", per_second)


def _stated(processor: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in processor.items() if value is not None}


def _check_patches(processor: Mapping[str, Any], tower: TowerConfig, factor: int, what: str) -> None:
    """Raises ModelLoadError: they are not the tower's."""
    numbers = {"patch_size": tower.patch_size, "merge_size": factor, "temporal_patch_size": tower.num_frames}
    for name, number in numbers.items():
        if processor[name] != number:
            raise ModelLoadError(f"{name} {shown(processor[name])} of its {what} processor is not its tower's {number}")


def _axes(text: dict[str, Any], known: _QwenVL) -> tuple[int, ...]:
    """See `VisionConfig`: consecutive pairs of a head, a section for each axis. Or a pair for each axis in turn, until
    one has had as many as its section; then the first takes its turns, too.
    """
    takes_turns = known.takes_turns
    rope = optional_object(text, "rope_scaling") or optional_object(text, "rope_parameters")
    sections = list(known.sections) if rope.get("mrope_section") is None else rope["mrope_section"]
    is_list = isinstance(sections, list) and (len(sections) == 3 if takes_turns else 1 <= len(sections) <= MOST_SCALE)
    if not is_list or not all(type(one) is int and 0 <= one <= MOST_HEAD_DIM for one in sections):
        raise ModelLoadError(f"mrope_section {shown(sections)} is not a list of numbers of pairs")
    if boolean(rope, "mrope_interleaved", takes_turns) != takes_turns:
        raise ModelLoadError(f"mrope_interleaved {shown(rope['mrope_interleaved'])} is not implemented for it")
    if takes_turns:
        turns = ((number % 3, number // 3) for number in range(sum(sections)))
        return tuple(axis if turn < sections[axis] else 0 for axis, turn in turns)
    return tuple(number % 3 for number, size in enumerate(sections) for _ in range(size))
