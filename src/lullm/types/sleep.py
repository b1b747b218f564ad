"""Sleep as plain data: tags, commands, forecasts and reports."""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from lullm.errors import EngineAsleepError, InvalidRequestError

SleepMode = Literal["keep", "wait", "abort"]
"""The treatment of unfinished requests: keep them and continue after waking, wait for their ends, or abort them."""

BackupTarget = Literal["auto", "ram", "disk"]
"""The place of backups. 'auto': a file on a CPU, where sleep is to free RAM, and RAM on a device."""

SleepState = Literal["awake", "paused", "weights_offloaded", "discard_all", "partial"]
"""The state in one word. 'paused': level 0. 'weights_offloaded', 'discard_all': everything sleeps, the weights at level
1 or 2. 'partial': only the weights or only the KV cache.
"""

SleepCause = Literal["call", "idle", "request", "budget"]
"""The cause of a sleep or a wake-up: a call, idle time (the ladder), a request, or memory for another model."""

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
WAKE_TAGS = (*TAGS, "scheduling")
"""vLLM's third tag names no memory: it ends a pause. Here steps begin again once all memory is back."""


@dataclass(frozen=True, slots=True)
class SleepOptions:
    """Options of a sleep, checked when they are built.

    Args:
        level: 0 pauses, 1 keeps the contents that are needed to go on, 2 keeps nothing.
        mode: unfinished requests are kept and continued after waking ('keep'), finished first ('wait'), or aborted
            ('abort').
        tags: 'weights' and 'kv_cache'; None: both.
        backup: 'ram', 'disk' (a file without a name in `sleep_dir`) or 'auto'.
        keep_prefix_cache: also save cached blocks that no request holds; not at level 2.

    Raises:
        InvalidRequestError: a value is invalid; `.param` names it.
    """

    level: int = 1
    mode: SleepMode = "keep"
    tags: Sequence[str] | None = None
    backup: BackupTarget = "auto"
    keep_prefix_cache: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.level, bool | float) or self.level not in (0, 1, 2):
            raise InvalidRequestError(f"sleep level must be 0, 1 or 2, not {self.level!r}", "level")
        check_tags(self.tags)
        for name, choices in (("mode", get_args(SleepMode)), ("backup", get_args(BackupTarget))):
            if getattr(self, name) not in choices:
                raise InvalidRequestError(
                    f"sleep {name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}", name
                )
        if not isinstance(self.keep_prefix_cache, bool):
            raise InvalidRequestError(
                f"keep_prefix_cache must be true or false, not {self.keep_prefix_cache!r}", "keep_prefix_cache"
            )
        if self.keep_prefix_cache and self.level == 2:
            raise InvalidRequestError("level 2 keeps nothing, the prefix cache neither", "keep_prefix_cache")


class ForecastArguments(TypedDict, total=False):
    """Keyword arguments of `explain_sleep`; see `SleepOptions`."""

    tags: Sequence[str] | None
    backup: BackupTarget
    keep_prefix_cache: bool


class SleepArguments(ForecastArguments, total=False):
    """Keyword arguments of `sleep`; see `SleepOptions`."""

    mode: SleepMode


def check_awake(state: SleepState, tags: Sequence[str]) -> None:
    """Check that an engine in this state computes. Raises EngineAsleepError otherwise. `tags`: those released."""
    if tags:
        raise EngineAsleepError(f"the engine is asleep ({', '.join(tags)} released); call wake_up()")
    if state != "awake":
        raise EngineAsleepError("the engine is paused (sleep level 0); call wake_up()")


def check_tags(tags: Sequence[str] | None, known: Sequence[str] = TAGS) -> None:
    """Check that `tags` are among the `known`, or None for all. Raises InvalidRequestError otherwise."""
    if tags is None:
        return
    if isinstance(tags, str) or not isinstance(tags, Collection):
        kind = type(tags).__name__
        raise InvalidRequestError(f"sleep tags come as a list, such as [{WEIGHTS!r}]; {kind} is none", "tags")
    if not all(tag in known for tag in tags):
        raise InvalidRequestError(f"sleep tags are {WEIGHTS!r} and {KV_CACHE!r}, not {tags!r}", "tags")


@dataclass(frozen=True, slots=True)
class UsedBlocks:
    """Block ids whose content must be saved, by pool."""

    device: list[int]
    host: list[int]


class Residence(enum.Enum):
    """Where the contents of one tag are: in their place, in a backup, or only in the checkpoint."""

    RESIDENT = enum.auto()
    OFFLOADED = enum.auto()
    DISCARDED = enum.auto()


Action = Literal["offload", "discard", "move", "drop", "restore", "refill"]
"""A worker's action on one tag. To sleep: save and release ('offload'), release only ('discard'), move the backup to
another target ('move'), delete the backup ('drop'). To wake: read the backup ('restore'), start anew ('refill').
"""


@dataclass(frozen=True, slots=True)
class SleepCommand:
    """A sleep's actions for workers, all of them or none. `used`: the KV blocks that 'offload' saves."""

    level: int
    actions: tuple[tuple[str, Action], ...]
    used: UsedBlocks
    backup: BackupTarget = "auto"

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag, _ in self.actions)


@dataclass(frozen=True, slots=True)
class Released:
    """A worker's report of a sleep. `freed_bytes`: by how much the resident memory of its process fell.

    `refusal`: the error of a driver that did not take memory back; None: all of it is released.
    """

    tags: tuple[str, ...]
    freed_bytes: int
    backed_up_bytes: int
    seconds: float
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SleepReport:
    """The result of a `sleep`. `freed_bytes`: by how much the resident memory of the process fell."""

    level: int
    tags: tuple[str, ...]
    freed_bytes: int
    backed_up_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WakeReport:
    """The result of a `wake_up`. `restored_bytes`: of weights and KV blocks that were put back into their places."""

    tags: tuple[str, ...]
    restored_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SleepEvent:
    """A sleep or a wake-up of an engine; one of three outcomes is set.

    Args:
        slept: memory was released, or the engine paused.
        woke: memory came back, or a pause ended.
        failed: 'sleep': a backup failed, and nothing was released; 'wake_up': there was no memory, or contents did not
            come back as they were, and all that slept is asleep again.
    """

    cause: SleepCause
    slept: SleepReport | None = None
    woke: WakeReport | None = None
    failed: Literal["sleep", "wake_up"] | None = None


@dataclass(frozen=True, slots=True)
class SleepForecast:
    """The prediction of a `sleep`, in the terms of its report, and the time of a complete `wake_up`."""

    level: int
    tags: tuple[str, ...]
    frees_bytes: int
    backs_up_bytes: int
    sleep_seconds: float
    wake_seconds: float
