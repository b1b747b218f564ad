"""Fields of a `config.json`, read with a check. Every fault is a ModelLoadError that names the field."""

import math
from typing import Any

from lullm.errors import ModelLoadError


def positive_int(data: dict[str, Any], name: str, default: int | None = None) -> int:
    """`data[name]`; missing or null: the default, if there is one."""
    value = data.get(name)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"config.json: {name} must be a positive integer, not {value!r}")
    return value


def positive_float(data: dict[str, Any], name: str, default: float) -> float:
    """`data[name]` as a float; missing or null: the default."""
    value = data.get(name)
    value = default if value is None else value
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < math.inf:
        raise ModelLoadError(f"config.json: {name} must be a positive number, not {value!r}")
    return float(value)


def optional_positive_float(data: dict[str, Any], name: str) -> float | None:
    """`data[name]` as a float; None where it is missing or null."""
    return None if data.get(name) is None else positive_float(data, name, 1.0)


def token_id_list(value: Any, where: str) -> tuple[int, ...]:
    """An id, a list of ids or null, as both JSON files spell `eos_token_id`. Raises ModelLoadError."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ModelLoadError(f"{where} must be an id or a list of ids, not {value!r}")
    return tuple(ids)
