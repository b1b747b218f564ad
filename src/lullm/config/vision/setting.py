"""`mm_processor_kwargs`: other values for keys of preprocessor_config.json, of an engine or of one request."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from lullm.config.field import shown
from lullm.config.vision.picture import FIXED, KINDS, kind_of, read_picture
from lullm.config.vision.reading import check_tiles
from lullm.config.vision.vision import PictureForm, VisionConfig
from lullm.errors import ConfigError, InvalidRequestError, ModelLoadError

_NAME = "mm_processor_kwargs"
_MORE = {"Qwen2VL": ("min_pixels", "max_pixels"), "Llava": ("do_pad",)}
"""Keys beside those that have a default."""
_OTHER_NAMES = {"GotOcr2": {"min_dynamic_patch": "min_patches", "max_dynamic_patch": "max_patches"}}
"""Of InternVL's own files."""
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
_BOUNDS_OF_BUDGET = {"max_pixels": "max_soft_tokens"}
_LEAST = {"min_crop": "pan_and_scan_min_crop_size", "min_ratio": "pan_and_scan_min_ratio_to_activate"}
"""Fields that make fewer tiles."""
_BOUNDS_OF_FIT = {"scan": _BOUNDS_OF_SCAN, "budget": _BOUNDS_OF_BUDGET}
_OF_TILES = (*_BOUNDS, *_LEAST, "resample", "pads")


def with_settings(vision: VisionConfig, settings: Mapping[str, Any]) -> VisionConfig:
    """With other values for keys of preprocessor_config.json. None: the file's.

    Raises ConfigError: a key is unknown, a value is wrong, or the tower cannot read such tiles.
    """
    stated = vision.picture.stated
    kind = kind_of(stated)
    given = _known(settings, kind)
    try:
        changed = replace(vision, picture=read_picture(_merged(stated, given, kind)))
        check_tiles(changed)
    except ModelLoadError as error:
        raise ConfigError(f"{_NAME}: {error}; give another value") from None
    return changed


def form_of_request(vision: VisionConfig, settings: Any) -> PictureForm:
    """The form for a request's own settings: they may make fewer tiles, and smaller ones, than the engine's.

    Raises InvalidRequestError: as `with_settings`; or the tower would read other numbers, or more of them.
    """
    if settings is None:
        return vision.picture
    if not isinstance(settings, Mapping):
        raise InvalidRequestError(f"{_NAME} must be a dict, not {type(settings).__name__}", _NAME)
    try:
        changed, own = with_settings(vision, settings).picture, vision.picture
    except ConfigError as error:
        raise InvalidRequestError(str(error), _NAME) from None
    advice = f"start the engine with {_NAME} for it"
    for each in fields(PictureForm):
        value, most = getattr(changed, each.name), getattr(own, each.name)
        if each.compare and each.name not in _OF_TILES and value != most:
            key = next((name for name in _KEYS_OF_EDGE if name in settings), "") if each.name == "edge" else each.name
            raise InvalidRequestError(f"{_NAME}: a request cannot change {key or each.name}; {advice}", _NAME)
        names = _BOUNDS | _BOUNDS_OF_FIT.get(own.fit, {}) | _LEAST
        is_low = each.name in _LEAST
        if each.name in names and (value < most if is_low else value > most):
            unit = own.edge**2 if own.fit == "budget" else 1  # pixels of a row
            value, most = value // unit, most // unit
            raise InvalidRequestError(
                f"{_NAME}: {names[each.name]} {value} of a request is {'below' if is_low else 'above'} the engine's "
                f"{most}; {advice}",
                _NAME,
            )
    return changed


def _known(settings: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The settings under the names of the file. Raises ConfigError."""
    defaults, others = KINDS[kind], _OTHER_NAMES.get(kind, {})
    names = [*(name for name in defaults if name not in FIXED), *_MORE.get(kind, ()), *others]
    if unknown := [str(name) for name in settings if name not in names]:
        raise ConfigError(
            f"{_NAME}: nothing is known about {', '.join(sorted(unknown))[:200]}; the pictures of this model have "
            f"{', '.join(sorted(names))}"
        )
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


def _merged(stated: Mapping[str, Any], given: dict[str, Any], kind: str) -> dict[str, Any]:
    """Edges that `given` leaves open are those of the file, and its older names do not count before newer ones."""
    merged = {**stated, **given}
    for name, value in given.items():
        base = stated.get(name) or KINDS[kind].get(name)
        if isinstance(value, dict) and isinstance(base, dict):
            merged[name] = base | value
    size = given.get("size")
    if kind == "Qwen2VL" and isinstance(size, dict):
        for edge in size:
            merged[_OLDER_NAMES[edge]] = given.get(_OLDER_NAMES[edge])
    return merged
