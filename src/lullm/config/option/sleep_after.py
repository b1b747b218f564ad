"""`sleep_after`: when an idle engine goes to sleep by itself, and how deep, as a ladder of rungs.

    60s:1,10m:disk      after a minute level 1, after ten minutes its backups go to disk

A rung is `TIME:DEPTH`. Depths, from light to deep: `1` and `ram` (level 1; the backup target the device prefers, or
RAM), `disk` (level 1, backups on disk), `2` (level 2). Times are numbers with a unit: 90s, 1h30m, 250ms.
"""

import math
import re
from dataclasses import dataclass

from lullm.errors import ConfigError
from lullm.types.sleep import BackupTarget

_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER_AND_UNIT = r"(\d+\.?\d*|\.\d+)(ms|s|m|h)"
_DURATION = re.compile(rf"([+-]?)((?:{_NUMBER_AND_UNIT})+)")
_DEPTHS: dict[str, tuple[int, int, BackupTarget]] = {
    "1": (1, 1, "auto"),
    "ram": (1, 1, "ram"),
    "disk": (2, 1, "disk"),
    "2": (3, 2, "auto"),
}
"""Name -> (how deep, level, backup target)."""


@dataclass(frozen=True, slots=True)
class SleepRung:
    """Sleep at `level` with `backup` once the engine has been idle for `idle_s` seconds."""

    idle_s: float
    level: int
    backup: BackupTarget


def parse_duration(text: str) -> float:
    """`'90s'`, `'1h30m'`, `'250ms'`, `'-1m'` -> seconds. Raises ValueError."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time like 90s, 10m, 1h30m or 250ms")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in re.findall(_NUMBER_AND_UNIT, match[2]))
    return -seconds if match[1] == "-" else seconds


def parse_sleep_after(text: str) -> tuple[SleepRung, ...]:
    """The rungs of a ladder, in order.

    Raises:
        ConfigError: the syntax is wrong, or a rung is not later and deeper than the one before.
    """
    rungs: list[SleepRung] = []
    deepest = 0
    for part in text.split(","):
        time, _, name = part.strip().partition(":")
        if name not in _DEPTHS:
            raise ConfigError(
                f"sleep_after: {part.strip()!r} is not TIME:DEPTH with a depth of {', '.join(_DEPTHS)}; "
                "write a ladder like 60s:1,10m:disk"
            )
        try:
            idle_s = parse_duration(time)
        except ValueError as error:
            raise ConfigError(f"sleep_after: {error}") from None
        depth, level, backup = _DEPTHS[name]
        if not (0 < idle_s < math.inf):
            raise ConfigError(f"sleep_after: the time {time!r} must be above 0")
        if rungs and idle_s <= rungs[-1].idle_s:
            raise ConfigError(f"sleep_after: {part.strip()!r} must come later than the rung before it")
        if depth <= deepest:
            raise ConfigError(
                f"sleep_after: {part.strip()!r} must be deeper than the rung before it (1 or ram, disk, 2)"
            )
        deepest = depth
        rungs.append(SleepRung(idle_s, level, backup))
    return tuple(rungs)
