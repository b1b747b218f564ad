"""Reads what a video processor does: video_preprocessor_config.json, or its part in a processor_config.json."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args

from lullm.config.field import shown
from lullm.config.json_file import PROCESSOR_FILES, optional_object
from lullm.config.vision.picture import KINDS as PICTURE_KINDS
from lullm.config.vision.picture import MOST_AT_ONCE, MOST_ROW_EDGE, area_of, count_of, form_of
from lullm.config.vision.video import VideoForm, VideoKind
from lullm.errors import ModelLoadError

_SAMPLING = {
    "do_sample_frames": None, "fps": None, "num_frames": None, "min_frames": 4, "max_frames": 768,
    "cap_pixels_per_frame": False,
}  # fmt: skip
_QWEN2_VL = dict(PICTURE_KINDS["Qwen2VL"].defaults) | _SAMPLING | {
    "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}, "max_video_tokens": 128000,
}  # fmt: skip
_QWEN3_VL = _QWEN2_VL | {
    "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "patch_size": 16, "max_video_tokens": 768,
    "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 768 * 32 * 32},
}  # fmt: skip
_GLM46V = dict(PICTURE_KINDS["Glm46V"].defaults) | {
    "do_sample_frames": None, "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 60000},
}  # fmt: skip
_GLM4V = _GLM46V | {"fps": 2, "max_duration": 300}
KINDS: Mapping[str, Mapping[str, Any]] = {
    "Qwen2VL": _QWEN2_VL,
    "Qwen3VL": _QWEN3_VL,
    "Glm4v": _GLM4V,
    "Glm46V": _GLM46V,
}
"""By the class of the video processor: the values of missing keys, as in transformers."""
FILE = "video_preprocessor_config.json"
_OTHERS = _SAMPLING | {"min_frames": 1, "max_frames": 1 << 16, "max_video_tokens": 1, "max_duration": 1}
"""What kinds without these keys do: nothing of it, whatever a file says."""
_OLDER = ("min_pixels", "max_pixels")
DEFAULT_FPS = 2.0
"""The rate where a file says nothing, as in Qwen's own tools."""
_MOST_FRAMES = 1 << 16
_MOST_FPS = 1000
_MOST_TOKENS = 1 << 30


def video_keys(folder: Path) -> dict[str, Any]:
    """The keys of a folder's video processor. Older folders say for pictures only how both are read.

    Raises ModelLoadError: no file has them, or one is damaged.
    """
    inner = optional_object(folder / PROCESSOR_FILES[1]).get("video_processor")
    keys = inner if isinstance(inner, dict) else None
    keys = keys or optional_object(folder / FILE) or optional_object(folder / PROCESSOR_FILES[0])
    if not keys:
        raise ModelLoadError(f"its folder has no {FILE}")
    return keys


def kind_of_video(stated: Mapping[str, Any], default: VideoKind) -> VideoKind:
    """The class of a video processor. Raises ModelLoadError: it is another one."""
    named = stated.get("video_processor_type") or default
    match = re.fullmatch(r"(\w+?)(VideoProcessor)?", named) if isinstance(named, str) else None
    if match is None or match[1] not in get_args(VideoKind):
        raise ModelLoadError(f"its video processor is {shown(named)}, and only those of {', '.join(KINDS)} are known")
    return cast(VideoKind, match[1])


def read_form(stated: dict[str, Any], kind: VideoKind) -> VideoForm:
    """The form of a video processor. Raises ModelLoadError: a value is not implemented."""
    own = KINDS[kind]
    data = {**_OTHERS, **own, **{key: value for key, value in stated.items() if value is not None and key in own}}
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if data[name] is not True:
            raise ModelLoadError(f"{name} {shown(data[name])} of its video processor is not implemented")
    patch = count_of(data, "patch_size", MOST_ROW_EDGE)
    edge = patch * count_of(data, "merge_size", MOST_ROW_EDGE // patch)
    older = data | {key: stated.get(key) for key in _OLDER if kind == "Qwen2VL"}
    least, most = area_of(older, "min_pixels", "shortest_edge"), area_of(older, "max_pixels", "longest_edge")
    if least > most:
        raise ModelLoadError(f"the fewest pixels of its video processor, {least}, are above the most, {most}")
    for name in ("do_sample_frames", "cap_pixels_per_frame"):
        if not isinstance(data[name], bool | None):
            raise ModelLoadError(f"{name} {shown(data[name])} of its video processor is neither true nor false")
    least_frames, most_frames = count_of(data, "min_frames", _MOST_FRAMES), count_of(data, "max_frames", _MOST_FRAMES)
    if least_frames > most_frames:
        raise ModelLoadError(f"min_frames {least_frames} of its video processor is above max_frames {most_frames}")
    num_frames = None if data["num_frames"] is None else count_of(data, "num_frames", _MOST_FRAMES)
    return VideoForm(
        kind=kind,
        frame=replace(form_of(data, edge, "area", edge), min_pixels=least, max_pixels=most),
        num_at_once=count_of(data, "temporal_patch_size", MOST_AT_ONCE),
        samples=None,  # what a file says is meant for arrays
        fps=_fps(data),
        num_frames=num_frames,
        min_frames=least_frames,
        max_frames=most_frames,
        has_caps=data["cap_pixels_per_frame"] is True,
        max_tokens=count_of(data, "max_video_tokens", _MOST_TOKENS),
        max_duration=count_of(data, "max_duration", _MOST_FRAMES),
        stated=stated,
    )


def _fps(data: Mapping[str, Any]) -> float | None:
    value = data["fps"]
    if value is None:
        return None if data["num_frames"] is not None else DEFAULT_FPS
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= _MOST_FPS:
        raise ModelLoadError(f"fps {shown(value)} of its video processor is not above 0 and at most {_MOST_FPS}")
    return float(value)
