"""Reads what an image processor does: preprocessor_config.json, or its part in a processor_config.json."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from lullm.config.field import shown
from lullm.config.vision.form import Fit, PictureForm
from lullm.config.vision.tower import MOST_EDGE
from lullm.errors import ModelLoadError

_BILINEAR, _BICUBIC, _LANCZOS = 2, 3, 1
_CLIP_MEAN, _CLIP_STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
_ALL_ON = {"do_resize": True, "do_rescale": True, "do_normalize": True, "rescale_factor": 1 / 255}
_CROPPING = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "size": {"shortest_edge": 224},
    "crop_size": {"height": 224, "width": 224}, "do_center_crop": True,
}  # fmt: skip
_SPLITTING = _ALL_ON | {
    "resample": _LANCZOS, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"longest_edge": 1456},
    "max_image_size": {"longest_edge": 364}, "do_image_splitting": True,
}  # fmt: skip
_SPREADING = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "size": {"height": 384, "width": 384},
    "crop_to_patches": False, "min_patches": 1, "max_patches": 12,
}  # fmt: skip
PATCHES = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
"""How Qwen2-VL's image processor groups patches, where its file says nothing."""
_AREA = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, **PATCHES,
    "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
}  # fmt: skip
PADDLE_PATCHES = PATCHES | {"temporal_patch_size": 1}
"""The same of PaddleOCR-VL's."""
_PADDLE = _AREA | PADDLE_PATCHES | {"size": {"shortest_edge": 384 * 384, "longest_edge": 1536 * 1536}}
_VOLUME = _AREA | {"size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 15000}}
_SCANNING = _ALL_ON | {
    "resample": _BILINEAR, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 224, "width": 224},
    "do_pan_and_scan": False, "pan_and_scan_min_crop_size": 256, "pan_and_scan_max_num_crops": 4,
    "pan_and_scan_min_ratio_to_activate": 1.2,
}  # fmt: skip
_WITHIN = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": _CLIP_MEAN, "image_std": _CLIP_STD, "size": {"longest_edge": 1024},
    "patch_size": 16, "do_center_crop": False,
}  # fmt: skip
_NEXT = _CROPPING | {
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
}  # fmt: skip
_ONEVISION = _NEXT | {
    "size": {"height": 384, "width": 384}, "crop_size": None, "do_center_crop": False,
    "image_grid_pinpoints": [[384 * lines, 384 * columns] for lines in range(1, 7) for columns in range(1, 7)],
}  # fmt: skip
_CORNERED = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 448, "width": 448},
    "patch_size": 14, "dynamic_hd": 36,
}  # fmt: skip
SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""The values of Gemma 4's `max_soft_tokens`."""
_BUDGET = {
    "do_resize": True, "do_rescale": True, "do_normalize": False, "rescale_factor": 1 / 255, "resample": _BICUBIC,
    "patch_size": 16, "pooling_kernel_size": 3, "max_soft_tokens": 280,
}  # fmt: skip
_SIGLIP = _ALL_ON | {
    "resample": _BICUBIC, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 224, "width": 224},
}  # fmt: skip
FIXED = (
    "do_resize", "do_rescale", "do_normalize", "do_center_crop", "image_grid_pinpoints", "pooling_kernel_size",
    *PATCHES,
)  # fmt: skip
"""Keys for which a model has one value that is implemented."""
_MOST_TILES_PER_SIDE = 16
_MOST_PIXELS = 1 << 26
"""Pixels of all tiles of a picture: as many as a picture may have."""
_MOST_GRIDS = 256
_MOST_VALUE = 1e6
MOST_AT_ONCE = 64
"""Frames that a tower reads at once."""
MOST_ROW_EDGE = 1 << 10
"""Pixels that one row sees on an edge. The largest known has 32; an edge of a very thin picture is no less than one."""


@dataclass(frozen=True, slots=True)
class PictureKind:
    """What a class of image processors does. `defaults`: the values of missing keys, as in transformers. `read`: the
    form, from the values of all keys; raises ModelLoadError.
    """

    defaults: Mapping[str, Any]
    read: Callable[[Mapping[str, Any]], PictureForm]


def _read_square(data: Mapping[str, Any]) -> PictureForm:
    if not data.get("do_center_crop"):
        edge = _square(data, "size")
        return form_of(data, edge, "stretch", edge)
    edge, short = _square(data, "crop_size"), _edge(data, "size", "shortest_edge")
    if short < edge:
        raise ModelLoadError(f"crop_size {edge} is above the shortest_edge {short} of its image processor")
    return form_of(data, edge, "crop", short)


def _read_padded(data: Mapping[str, Any]) -> PictureForm:
    return replace(_read_square(data), pads=data.get("do_pad") is True)


def _read_split(data: Mapping[str, Any]) -> PictureForm:
    edge, longest = _edge(data, "max_image_size", "longest_edge"), _edge(data, "size", "longest_edge")
    splits = data["do_image_splitting"] is True
    if splits and longest > _MOST_TILES_PER_SIDE * edge:
        raise ModelLoadError(f"size {longest} is above {_MOST_TILES_PER_SIDE} tiles of {edge} pixels")
    return form_of(data, edge, "split", longest, splits)


def _read_grid(data: Mapping[str, Any]) -> PictureForm:
    edge = _square(data, "size")
    form = form_of(data, edge, "grid", edge)
    if data["crop_to_patches"] is not True:
        return form
    most = count_of(data, "max_patches", _MOST_PIXELS // edge**2)
    return replace(form, min_tiles=count_of(data, "min_patches", most), max_tiles=most)


def _read_grouped(data: Mapping[str, Any], is_area: bool) -> PictureForm:
    """The form for a processor that groups patches: Qwen2-VL's (`is_area`), GLM-4.1V's."""
    patch = count_of(data, "patch_size", MOST_ROW_EDGE)
    edge = patch * count_of(data, "merge_size", MOST_ROW_EDGE // patch)
    older = data if is_area else {"size": data["size"]}
    least, most = area_of(older, "min_pixels", "shortest_edge"), area_of(older, "max_pixels", "longest_edge")
    if least > most:
        names = ("min_pixels", "max_pixels") if is_area else ("size.shortest_edge", "size.longest_edge")
        raise ModelLoadError(f"{names[0]} {least} of its image processor is above {names[1]} {most}")
    form = replace(form_of(data, edge, "area", edge), min_pixels=least, max_pixels=most)
    if is_area:
        return form
    return replace(form, fit="volume", num_frames=count_of(data, "temporal_patch_size", MOST_AT_ONCE))


def _read_widened(data: Mapping[str, Any]) -> PictureForm:
    return replace(_read_grouped(data, is_area=True), widens=True)


def _read_scan(data: Mapping[str, Any]) -> PictureForm:
    edge, ratio = _square(data, "size"), data["pan_and_scan_min_ratio_to_activate"]
    if not isinstance(ratio, float | int) or isinstance(ratio, bool) or not 1 <= ratio <= _MOST_VALUE:
        raise ModelLoadError(f"pan_and_scan_min_ratio_to_activate {shown(ratio)} of its image processor is below 1")
    return replace(
        form_of(data, edge, "scan", edge, data["do_pan_and_scan"] is True),
        max_tiles=count_of(data, "pan_and_scan_max_num_crops", _MOST_TILES_PER_SIDE),
        min_crop=count_of(data, "pan_and_scan_min_crop_size", MOST_EDGE),
        min_ratio=float(ratio),
    )


def _read_within(data: Mapping[str, Any]) -> PictureForm:
    if (crops := data["do_center_crop"]) is not False:
        raise ModelLoadError(f"do_center_crop {shown(crops)} of its image processor is not implemented")
    patch = count_of(data, "patch_size", MOST_ROW_EDGE)
    return form_of(data, patch, "within", _edge(data, "size", "longest_edge"))


def _read_anyres(data: Mapping[str, Any]) -> PictureForm:
    is_square = isinstance(data["size"], dict) and data["size"].get("height") is not None
    edge = _square(data, "size") if is_square else _edge(data, "size", "shortest_edge")
    if data["crop_size"] is not None and _square(data, "crop_size") != edge:
        raise ModelLoadError(f"crop_size of its image processor is not its size, {edge} pixels")
    return replace(form_of(data, edge, "anyres", edge), grids=grids_of(data["image_grid_pinpoints"], edge))


def _read_corner(data: Mapping[str, Any]) -> PictureForm:
    edge = _square(data, "size")
    if (filtered := data["resample"]) != _BICUBIC:  # of the small copy of the whole; the grid's is another one
        raise ModelLoadError(f"resample {shown(filtered)} of its image processor is not {_BICUBIC}")
    form = form_of({**data, "resample": _BILINEAR}, edge, "corner", edge)
    return replace(form, max_tiles=count_of(data, "dynamic_hd", _MOST_PIXELS // edge**2))


def _read_budget(data: Mapping[str, Any]) -> PictureForm:
    patch, num_soft = count_of(data, "patch_size", MOST_ROW_EDGE), data["max_soft_tokens"]
    edge = patch * count_of(data, "pooling_kernel_size", MOST_ROW_EDGE // patch)
    if type(num_soft) is not int or num_soft not in SOFT_TOKENS:
        known = ", ".join(map(str, SOFT_TOKENS))
        raise ModelLoadError(f"max_soft_tokens {shown(num_soft)} of its image processor are none of {known}")
    # The tower makes numbers from -1 to 1 of the processor's, which are from 0 to 1.
    centered = {**data, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return replace(form_of(centered, edge, "budget", edge), max_pixels=num_soft * edge**2)


KINDS: Mapping[str, PictureKind] = {
    "CLIP": PictureKind(_CROPPING, _read_square),
    "Llava": PictureKind(_CROPPING, _read_padded),
    "Siglip": PictureKind(_SIGLIP, _read_square),
    "Idefics3": PictureKind(_SPLITTING, _read_split),
    "SmolVLM": PictureKind(_SPLITTING, _read_split),
    "GotOcr2": PictureKind(_SPREADING, _read_grid),
    "Qwen2VL": PictureKind(_AREA, partial(_read_grouped, is_area=True)),
    "PaddleOCRVL": PictureKind(_PADDLE, _read_widened),
    "Glm4v": PictureKind(_VOLUME, partial(_read_grouped, is_area=False)),
    "Glm46V": PictureKind(_VOLUME, partial(_read_grouped, is_area=False)),
    "Gemma3": PictureKind(_SCANNING, _read_scan),
    "Pixtral": PictureKind(_WITHIN, _read_within),
    "LlavaNext": PictureKind(_NEXT, _read_anyres),
    "LlavaOnevision": PictureKind(_ONEVISION, _read_anyres),
    "Gemma4": PictureKind(_BUDGET, _read_budget),
    "Phi4Multimodal": PictureKind(_CORNERED, _read_corner),
    "Phi4MM": PictureKind(_CORNERED, _read_corner),
}
"""By the class of the image processor."""


def kind_of(data: Mapping[str, Any]) -> str:
    """One of `KINDS`. Raises ModelLoadError: it is another."""
    named = data.get("image_processor_type") or data.get("feature_extractor_type") or ""
    match = (
        re.fullmatch(r"(\w+?)(ImageProcessor|FeatureExtractor)(Fast|Pil)?", named) if isinstance(named, str) else None
    )
    kind = match[1] if match else ""
    if kind not in KINDS:
        raise ModelLoadError(
            f"its image processor is {shown(named)}, and only those of {', '.join(KINDS)} are known here"
        )
    return kind


def read_picture(stated: dict[str, Any]) -> PictureForm:
    """The form of an image processor. Raises ModelLoadError: a value is not implemented."""
    kind = KINDS[kind_of(stated)]
    data = {**kind.defaults, **{key: value for key, value in stated.items() if value is not None}}
    for name in ("do_resize", "do_rescale", "do_normalize"):
        if data[name] is not kind.defaults[name]:
            raise ModelLoadError(f"{name} {shown(data[name])} of its image processor is not implemented")
    return replace(kind.read(data), stated=stated)


def form_of(data: Mapping[str, Any], edge: int, fit: Fit, resize_edge: int, splits: bool = False) -> PictureForm:
    """What all image processors state. Raises ModelLoadError."""
    resample, factor = data["resample"], data["rescale_factor"]
    if not isinstance(resample, int) or isinstance(resample, bool) or not 0 <= resample <= 5:
        raise ModelLoadError(f"resample {shown(resample)} of its image processor is no filter of Pillow")
    if not isinstance(factor, float | int) or not 0 < factor <= 1:
        raise ModelLoadError(f"rescale_factor {shown(factor)} of its image processor is not from 0 to 1")
    mean, std = _channels(data, "image_mean"), _channels(data, "image_std")
    if not all(std):
        raise ModelLoadError("image_std of its image processor is 0")
    return PictureForm(
        edge=edge,
        fit=fit,
        resize_edge=resize_edge,
        splits=splits,
        pads=False,
        resample=resample,
        rescale_factor=float(factor),
        image_mean=mean,
        image_std=std,
    )


def grids_of(pinpoints: Any, edge: int) -> tuple[tuple[int, int], ...]:
    """(lines, columns) of grids of squares, from their (height, width) in pixels. Raises ModelLoadError."""
    is_list = isinstance(pinpoints, list) and 1 <= len(pinpoints) <= _MOST_GRIDS
    if not is_list or not all(isinstance(one, list | tuple) and len(one) == 2 for one in pinpoints):
        raise ModelLoadError(f"image_grid_pinpoints {shown(pinpoints)} are no list of up to {_MOST_GRIDS} sizes")
    for one in pinpoints:
        if not all(type(length) is int and 0 < length <= _MOST_TILES_PER_SIDE * edge for length in one):
            raise ModelLoadError(f"image_grid_pinpoints hold {shown(one)}, not up to {_MOST_TILES_PER_SIDE} tiles")
        if math.prod(one) > _MOST_PIXELS:
            raise ModelLoadError(f"image_grid_pinpoints hold {shown(one)}, above {_MOST_PIXELS} pixels")
        if any(length % edge for length in one):
            raise ModelLoadError(f"image_grid_pinpoints hold {shown(one)}, no multiples of {edge} pixels")
    return tuple((height // edge, width // edge) for height, width in pinpoints)


def count_of(data: Mapping[str, Any], name: str, most: int) -> int:
    """Raises ModelLoadError: the value is not from 1 to `most`."""
    value = data[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelLoadError(f"{name} {shown(value)} of its image processor is not from 1 to {most}")
    return value


def area_of(data: Mapping[str, Any], name: str, key: str) -> int:
    """A number of pixels, by its older name or the newer one, an "edge" of `size`. The older one counts, if both do."""
    if data.get(name) is not None:
        return count_of(data, name, _MOST_PIXELS)
    size = data["size"] if isinstance(data["size"], dict) else {}
    return count_of({f"size.{key}": size.get(key)}, f"size.{key}", _MOST_PIXELS)


def _edge(data: Mapping[str, Any], name: str, key: str) -> int:
    value = data[name]
    edge = value.get(key) if isinstance(value, dict) else value
    if not isinstance(edge, int) or isinstance(edge, bool) or not 1 <= edge <= MOST_EDGE:
        raise ModelLoadError(f"{name} {shown(value)} of its image processor is not a {key} up to {MOST_EDGE} pixels")
    return edge


def _square(data: Mapping[str, Any], name: str) -> int:
    value = data.get(name)
    height, width = (value.get("height"), value.get("width")) if isinstance(value, dict) else (value, value)
    if height != width or not isinstance(height, int) or not 1 <= height <= MOST_EDGE:
        raise ModelLoadError(f"{name} {shown(value)} of its image processor is not a square")
    return height


def _channels(data: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = data[name]
    is_list = isinstance(values, list) and len(values) == 3
    if not is_list or not all(isinstance(one, float | int) and abs(one) <= _MOST_VALUE for one in values):
        raise ModelLoadError(f"{name} {shown(values)} of its image processor is not a list of three numbers")
    return tuple(map(float, values))
