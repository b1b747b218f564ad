"""`mm_processor_kwargs`: other values for keys of preprocessor_config.json, of an engine or of one request.

They are for pictures, for videos, or for both if both have such a key; in `images_kwargs` or `videos_kwargs`, for one.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lullm.config.field import shown
from lullm.config.vision.form import PictureForm
from lullm.config.vision.picture import FIXED, KINDS, kind_of, read_picture
from lullm.config.vision.reading import check_tiles
from lullm.config.vision.video import VideoForm
from lullm.config.vision.video_reading import KINDS as VIDEO_KINDS
from lullm.config.vision.video_reading import read_form
from lullm.config.vision.vision import VisionConfig
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError

_NAME = "mm_processor_kwargs"
_OLDER = ("min_pixels", "max_pixels")
_MORE = {"Qwen2VL": _OLDER, "PaddleOCRVL": _OLDER, "Llava": ("do_pad",)}
"""Keys beside those that have a default."""
_OTHER_NAMES = {"GotOcr2": {"min_dynamic_patch": "min_patches", "max_dynamic_patch": "max_patches"}}
"""Other names of keys, in InternVL's own files."""
_OLDER_NAMES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}
_BOUNDS = {
    "min_pixels": "min_pixels",
    "max_pixels": "max_pixels",
    "min_tiles": "min_patches",
    "max_tiles": "max_patches",
    "resize_edge": "size",
    "splits": "do_image_splitting",
}
"""Fields that make more tiles, or larger ones, and the keys that they are read from. Lower bounds, too: many pictures
of one pixel are a small body."""
_KEYS_OF_EDGE = ("max_image_size", "crop_size", "size")
"""The first of them that is given is what `edge` was read from."""
_BOUNDS_OF_SCAN = {"splits": "do_pan_and_scan", "max_tiles": "pan_and_scan_max_num_crops"}
_BOUNDS_OF_VOLUME = {"min_pixels": "size.shortest_edge", "max_pixels": "size.longest_edge"}
_BOUNDS_OF_BUDGET = {"max_pixels": "max_soft_tokens"}
_BOUNDS_OF_CORNER = {"max_tiles": "dynamic_hd"}
_OF_PARTS = {"images_kwargs": "pictures", "videos_kwargs": "videos"}
_LEAST = {"min_crop": "pan_and_scan_min_crop_size", "min_ratio": "pan_and_scan_min_ratio_to_activate"}
"""Fields that make fewer tiles."""
_BOUNDS_OF_FIT = {
    "volume": _BOUNDS_OF_VOLUME,
    "scan": _BOUNDS_OF_SCAN,
    "budget": _BOUNDS_OF_BUDGET,
    "corner": _BOUNDS_OF_CORNER,
}
_ADVICE = f"start the engine with {_NAME} for it"
_OF_TILES = (*_BOUNDS, *_LEAST, "resample", "pads")


def with_settings(vision: VisionConfig, settings: Mapping[str, Any]) -> VisionConfig:
    """With other values for keys of preprocessor_config.json. None: the file's.

    Raises ConfigError: a key is unknown, a value is wrong, or the tower cannot read such tiles.
    """
    stated = vision.picture.stated
    kind = kind_of(stated)
    of_pictures, of_videos = _parts(vision, settings, kind)
    given = _known(of_pictures, kind)
    try:
        changed = replace(vision, picture=read_picture(_merged(stated, given, kind, KINDS[kind].defaults)))
        if vision.video is not None and of_videos:
            changed = replace(changed, video=replace(vision.video, form=_with_frames(vision.video.form, of_videos)))
        check_tiles(changed)
    except ModelLoadError as error:
        raise ConfigError(f"{_NAME}: {error}; give another value") from None
    return changed


def forms_of_request(vision: VisionConfig, settings: Any) -> tuple[PictureForm, VideoForm | None]:
    """The forms of pictures and videos for a request's own settings: they may make fewer tiles, and smaller ones, than
    the engine's.

    Raises InvalidRequestError: as `with_settings`; or the tower would read other numbers, or more of them.
    """
    own_video = None if vision.video is None else vision.video.form
    if settings is None:
        return vision.picture, own_video
    if not isinstance(settings, Mapping):
        raise InvalidRequestError(f"{_NAME} must be a dict, not {type(settings).__name__}", _NAME)
    try:
        changed = with_settings(vision, settings)
    except ConfigError as error:
        raise InvalidRequestError(str(error), _NAME) from None
    _check_bounds(changed.picture, vision.picture, settings)
    if own_video is None or changed.video is None:
        return changed.picture, None
    video = changed.video.form
    _check_bounds(video.frame, own_video.frame, settings)
    if video.max_frames > own_video.max_frames:
        raise _above("max_frames", video.max_frames, own_video.max_frames)
    if video.max_duration > own_video.max_duration:
        raise _above("max_duration", video.max_duration, own_video.max_duration)
    return changed.picture, video


def _check_bounds(changed: PictureForm, own: PictureForm, settings: Mapping[str, Any]) -> None:
    """Raises InvalidRequestError."""
    for each in fields(PictureForm):
        value, most = getattr(changed, each.name), getattr(own, each.name)
        if each.compare and each.name not in _OF_TILES and value != most:
            key = next((name for name in _KEYS_OF_EDGE if name in settings), "") if each.name == "edge" else each.name
            raise InvalidRequestError(f"{_NAME}: a request cannot change {key or each.name}; {_ADVICE}", _NAME)
        names = _BOUNDS | _BOUNDS_OF_FIT.get(own.fit, {}) | _LEAST
        is_low = each.name in _LEAST
        if each.name in names and (value < most if is_low else value > most):
            unit = own.edge**2 if own.fit == "budget" else 1  # pixels of a row
            raise _above(names[each.name], value // unit, most // unit, is_low)


def _above(name: str, value: Any, most: Any, is_low: bool = False) -> InvalidRequestError:
    return InvalidRequestError(
        f"{_NAME}: {name} {value} of a request is {'below' if is_low else 'above'} the engine's {most}; {_ADVICE}",
        _NAME,
    )


def _names(kind: str) -> list[str]:
    """All keys of pictures."""
    return [
        *(name for name in KINDS[kind].defaults if name not in FIXED),
        *_MORE.get(kind, ()),
        *_OTHER_NAMES.get(kind, {}),
    ]


def _video_names(form: VideoForm) -> list[str]:
    older = _OLDER if form.kind == "Qwen2VL" else ()
    return [*(name for name in VIDEO_KINDS[form.kind] if name not in FIXED), *older]


def _parts(vision: VisionConfig, settings: Mapping[str, Any], kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of pictures, those of videos. Raises ConfigError: a key is unknown."""
    names: dict[str, list[str]] = {"pictures": _names(kind)}
    names |= {"videos": _video_names(vision.video.form)} if vision.video else {}
    parts: dict[str, dict[str, Any]] = {"pictures": {}, "videos": {}}
    unknown = []
    for name, value in settings.items():
        if (part := _OF_PARTS.get(name, "")) in names:
            if not isinstance(value, Mapping):
                raise ConfigError(f"{_NAME}: {name} must be a dict, not {shown(value)}")
            unknown += [str(key) for key in value if key not in names[part]]
            parts[part] |= value
            continue
        takers = [part for part in names if name in names[part]]
        unknown += [] if takers else [str(name)]
        for part in takers:
            parts[part].setdefault(name, value)
    if unknown:
        known = sorted({name for part in names.values() for name in part})
        raise ConfigError(
            f"{_NAME}: nothing is known about {', '.join(sorted(unknown))[:200]}; the {' and '.join(names)} of this "
            f"model have {', '.join(known)}"
        )
    return parts["pictures"], parts["videos"]


def _with_frames(form: VideoForm, settings: Mapping[str, Any]) -> VideoForm:
    """Raises ConfigError, ModelLoadError."""
    given = {name: value for name, value in settings.items() if value is not None}
    asked = [name for name in ("fps", "num_frames") if name in given]
    if len(asked) == 2:
        raise ConfigError(f"{_NAME}: fps and num_frames both say how many frames are read; give one of them")
    for name in ("do_sample_frames", "cap_pixels_per_frame"):
        if not isinstance(given.get(name, False), bool):
            raise ConfigError(f"{_NAME}: {name} must be true or false, not {shown(given[name])}")
    if isinstance(size := given.get("size"), Mapping) and not size.keys() <= _OLDER_NAMES.keys():
        raise ConfigError(f"{_NAME}: size has {', '.join(_OLDER_NAMES)}, not {shown(dict(size))}")
    merged = _merged(form.stated, given, form.kind, VIDEO_KINDS[form.kind])
    if asked:
        merged |= {"fps": given.get("fps"), "num_frames": given.get("num_frames")}
    changed = read_form(merged, form.kind)
    samples = given.get("do_sample_frames", True if asked else form.samples)
    return replace(changed, samples=samples)


def _known(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The settings under the names of the file. Raises ConfigError."""
    defaults, others = KINDS[kind].defaults, _OTHER_NAMES.get(kind, {})
    given: dict[str, Any] = {}
    for name, value in settings.items():
        if value is None:
            continue
        default, own_name = defaults.get(name), others.get(name, name)
        if own_name in given:
            raise ConfigError(f"{_NAME}: {name} and another name for it; give one of them")
        if (isinstance(default, bool) or name == "do_pad") and not isinstance(value, bool):
            raise ConfigError(f"{_NAME}: {name} must be true or false, not {shown(value)}")
        if isinstance(default, dict) and isinstance(value, Mapping) and not value.keys() <= default.keys():
            raise ConfigError(f"{_NAME}: {name} has {', '.join(default)}, not {shown(dict(value))}")
        given[own_name] = dict(value) if isinstance(value, Mapping) else value
    return given


def _merged(stated: Mapping[str, Any], given: dict[str, Any], kind: str, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Edges that `given` leaves open are those of the file, and its older names do not count before newer ones."""
    merged = {**stated, **given}
    for name, value in given.items():
        base = stated.get(name) or defaults.get(name)
        if isinstance(value, dict) and isinstance(base, dict):
            merged[name] = base | value
    size = given.get("size")
    if _MORE.get(kind) is _OLDER and isinstance(size, dict):
        for edge in size:
            merged[_OLDER_NAMES[edge]] = given.get(_OLDER_NAMES[edge])
    return merged
