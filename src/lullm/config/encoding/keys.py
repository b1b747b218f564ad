"""Keys of a `quantization_config`: those that change the arithmetic are read or refused, others have no effect."""

import re
from collections.abc import Collection
from typing import Any

from lullm.config.encoding.scheme import Targets
from lullm.config.field import Data, shown
from lullm.errors import ModelLoadError
from lullm.log import get_logger

logger = get_logger(__name__)


_COMMON = frozenset({"quant_method", "version", "_load_in_4bit", "_load_in_8bit", "load_in_4bit", "load_in_8bit"})
_LONGEST_PATTERN = 1000
_MOST_REPEATS = 3  # unbounded ones: each multiplies the time of a search by the length of a name
_MOST_ENTRIES = 10_000


def fault(text: str) -> ModelLoadError:
    """The error of a file whose `quantization_config` is not supported or makes no sense."""
    return ModelLoadError(f"config.json: quantization_config: {text}")


def check_known(data: Data, reads: Collection[str], ignores: Collection[str], refuses: Collection[str]) -> None:
    """Refuse keys that change the arithmetic and are not implemented, unless their value is "none"; warn of others."""
    wrong = [f"{key} {shown(data[key])}" for key in sorted(refuses) if data.get(key)]
    if wrong:
        raise fault(f"{', '.join(wrong)}: not implemented, and it changes the weights; take another checkpoint")
    known = _COMMON.union(reads, ignores, refuses)
    if unknown := sorted(data.keys() - known):
        logger.warning(
            "config.json: quantization_config: ignored, since nothing is known about them: %s", ", ".join(unknown)
        )


def obj(value: Any, name: str) -> Data:
    """The value, an object."""
    if not isinstance(value, dict):
        raise fault(f"{name} must be an object, not {shown(value)}")
    return value


def choice(data: Data, name: str, allowed: tuple[Any, ...], default: Any) -> Any:
    """`data[name]`, one of `allowed`; missing or null: the default. Strings in any case."""
    value = data.get(name)
    value = default if value is None else value
    value = value.lower() if isinstance(value, str) else value
    if not any(value == each and type(value) is type(each) for each in allowed):
        raise fault(
            f"{name} is {shown(value)}; supported: {', '.join(map(repr, allowed))}; take the original in bfloat16, or "
            "a copy that says one of these"
        )
    return value


def group_size(data: Data) -> int | None:
    """`data["group_size"]`; -1 and a missing one: None, a whole row."""
    value = data.get("group_size")
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 20:
        raise fault(f"group_size must be -1 or a positive integer, not {shown(value)}")
    return value


def module_names(data: Data, *names: str) -> tuple[str, ...]:
    """The module names of all these keys; missing or null: none."""
    entries: list[str] = []
    for name in names:
        value = data.get(name) or []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise fault(f"{name} must be a list of names of modules, not {shown(value)}")
        entries += value
    if len(entries) > _MOST_ENTRIES:
        raise fault(f"{' and '.join(names)} name {len(entries)} modules; {_MOST_ENTRIES} are the most")
    return tuple(entries)


def wildcards(names: tuple[str, ...], name: str) -> Targets:
    """Targets by names with `*` for any text, or by expressions."""
    entries = (
        each if each.startswith("re:") else f"re:{re.escape(each).replace(re.escape('*'), '.*')}$" for each in names
    )
    return targets(tuple(entries), name)


def targets(entries: tuple[str, ...], name: str) -> Targets:
    """Targets whose expressions compile and are quick to search: no group in them is repeated."""
    patterns = []
    for entry in entries:
        if not entry.startswith("re:"):
            continue
        if len(entry) > _LONGEST_PATTERN or len(re.findall(r"[*+}]", entry)) > _MOST_REPEATS:
            raise fault(f"{name} holds {shown(entry)}, which is too long an expression; name the modules instead")
        if re.search(r"\)[*+{?]", entry):
            raise fault(f"{name} holds {shown(entry)}, which repeats a group; name the modules instead")
        try:
            patterns.append(re.compile(entry[3:]))
        except (re.error, RecursionError, OverflowError) as error:
            raise fault(f"{name} holds {shown(entry)}, which is no regular expression: {error}") from None
    return Targets(frozenset(entry for entry in entries if not entry.startswith("re:")), tuple(patterns))
