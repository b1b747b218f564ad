"""Fields of a `config.json`, read with a check. Every fault is a ModelLoadError that names the field.

Sizes have an upper bound, so that a damaged file ends here and not in an overflow or without memory.
"""

import reprlib
from typing import Any

from lullm.errors import ModelLoadError

Data = dict[str, Any]
"""A parsed `config.json`, or an object in one."""

LARGEST_ID = 2**31 - 1
"""Token ids are int32 in a step. The same bound holds for sizes and lengths without a smaller one."""

MOST_LAYERS = 1024
"""The deepest known model has 126 layers. Each layer takes about 2 ms to build."""
MOST_HIDDEN = 1 << 18
"""The widest known model has 16,384."""
MOST_INTERMEDIATE = 1 << 20
"""The widest known MLP has 53,248."""
MOST_HEAD_DIM = 1 << 12
"""The widest known heads have 512 elements."""
MOST_VOCAB = 1 << 24
"""The largest known has 262,208 tokens."""
MOST_HEADS = 1 << 12
"""The most known are 128."""
MOST_EXPERTS = 1 << 12
"""The most known have 512 in a layer."""


def shown(value: Any) -> str:
    """A value of a file for an error: cut, since a file may hold an integer of 4,000 digits."""
    return reprlib.repr(value)


def _stated(data: Data, name: str, default: Any) -> Any:
    value = data.get(name)
    return default if value is None else value


def positive_int(data: Data, name: str, default: int | None = None, most: int = LARGEST_ID) -> int:
    """`data[name]`, from 1 to `most`; missing or null: the default, if there is one."""
    value = _stated(data, name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ModelLoadError(f"config.json: {name} must be a positive integer up to {most}, not {shown(value)}")
    return value


def integer(data: Data, name: str, default: int) -> int:
    """`data[name]`; missing or null: the default."""
    value = _stated(data, name, default)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > LARGEST_ID:
        raise ModelLoadError(f"config.json: {name} must be an integer, not {shown(value)}")
    return value


def positive_float(data: Data, name: str, default: float, least: float = 1e-30, most: float = 1e30) -> float:
    """`data[name]` as a float from `least` to `most`; missing or null: the default.

    The default bounds are those of float32, in which a model computes.
    """
    value = _stated(data, name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise ModelLoadError(
            f"config.json: {name} must be a positive number from {least:g} to {most:g}, not {shown(value)}"
        )
    return float(value)


def optional_positive_float(data: Data, name: str) -> float | None:
    """`data[name]` as `positive_float` reads it; None where it is missing or null."""
    return None if data.get(name) is None else positive_float(data, name, 1.0)


def boolean(data: Data, name: str, default: bool) -> bool:
    """`data[name]`; missing or null: the default. A string is refused: "no" would count as true."""
    value = _stated(data, name, default)
    if not isinstance(value, bool):
        raise ModelLoadError(f"config.json: {name} must be true or false, not {shown(value)}")
    return value


def optional_object(data: Data, name: str) -> Data:
    """The object `data[name]`; missing or null: an empty one."""
    value = data.get(name)
    if value is not None and not isinstance(value, dict):
        raise ModelLoadError(f"config.json: {name} must be an object, not {shown(value)}")
    return value or {}


def token_id_list(value: Any, where: str) -> tuple[int, ...]:
    """The ids of `eos_token_id`: an id, a list of ids or null in both JSON files. Raises ModelLoadError."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i <= LARGEST_ID for i in ids):
        raise ModelLoadError(f"{where} must be an id or a list of ids from 0 to {LARGEST_ID}, not {shown(value)}")
    return tuple(ids)
