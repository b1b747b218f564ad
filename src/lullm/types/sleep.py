"""Sleep as plain data: tags, orders, forecasts and reports."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict, get_args

from lullm.errors import EngineAsleepError, InvalidRequestError

SleepMode = Literal["keep", "wait", "abort"]
"""What happens to requests that are not finished: kept and continued after waking, waited for, or aborted."""

BackupTarget = Literal["auto", "ram", "disk"]
"""The place of backups. 'auto': a file on a CPU, whose memory the sleep is to free, and RAM on a device."""

SleepState = Literal["awake", "paused", "weights_offloaded", "discard_all", "partial"]
"""In one word. 'paused': level 0. 'weights_offloaded', 'discard_all': everything sleeps, the weights at level 1 or 2.
'partial': the weights or the KV cache alone."""

SleepCause = Literal["call", "idle", "request"]
"""What put an engine to sleep or woke it: a call, the ladder when no request came, or a request."""

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)
WAKE_TAGS = (*TAGS, "scheduling")
"""vLLM's third names no memory: it ends a pause. Here steps begin again by themselves once all is back."""


@dataclass(frozen=True, slots=True)
class SleepOptions:
    """How an engine is to sleep, checked when it is built.

    Args:
        level: 0 pauses, 1 keeps what is needed to go on, 2 keeps nothing.
        mode: requests that are not finished are kept and continued after waking ('keep'), finished first ('wait'), or
            aborted ('abort').
        tags: 'weights' and 'kv_cache'; None: both.
        backup: 'ram', 'disk' (a file without a name in `sleep_dir`) or 'auto'.
        keep_prefix_cache: save cached blocks that no request holds, too; not at level 2.

    Raises:
        InvalidRequestError: a value makes no sense; `.param` names it.
    """

    level: int = 1
    mode: SleepMode = "keep"
    tags: Sequence[str] | None = None
    backup: BackupTarget = "auto"
    keep_prefix_cache: bool = False

    def __post_init__(self) -> None:
        if self.level not in (0, 1, 2) or isinstance(self.level, bool):
            raise InvalidRequestError(f"sleep level must be 0, 1 or 2, not {self.level!r}", "level")
        check_tags(self.tags)
        for name, choices in (("mode", get_args(SleepMode)), ("backup", get_args(BackupTarget))):
            if getattr(self, name) not in choices:
                raise InvalidRequestError(
                    f"sleep {name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}", name
                )
        if self.keep_prefix_cache and self.level == 2:
            raise InvalidRequestError("level 2 keeps nothing, the prefix cache neither", "keep_prefix_cache")


class ForecastArguments(TypedDict, total=False):
    """What `explain_sleep` takes by keyword; see `SleepOptions`."""

    tags: Sequence[str] | None
    backup: BackupTarget
    keep_prefix_cache: bool


class SleepArguments(ForecastArguments, total=False):
    """What `sleep` takes by keyword; see `SleepOptions`."""

    mode: SleepMode


def check_awake(state: SleepState, tags: Sequence[str]) -> None:
    """Return if an engine in this state computes. Raises EngineAsleepError otherwise. `tags`: what is released."""
    if tags:
        raise EngineAsleepError(f"the engine is asleep ({', '.join(tags)} released); call wake_up()")
    if state != "awake":
        raise EngineAsleepError("the engine is paused (sleep level 0); call wake_up()")


def check_tags(tags: Sequence[str] | None, known: Sequence[str] = TAGS) -> None:
    """Return if `tags` are some of the `known`, or None for all. Raises InvalidRequestError otherwise."""
    if isinstance(tags, str) or not set(tags or ()).issubset(known):
        raise InvalidRequestError(f"sleep tags are {WEIGHTS!r} and {KV_CACHE!r}, not {tags!r}", "tags")


@dataclass(frozen=True, slots=True)
class UsedBlocks:
    """Block ids whose content must survive, by pool."""

    device: list[int]
    host: list[int]


class Residence(enum.Enum):
    """Where the contents of one tag are: in their place, kept elsewhere, or nowhere but in the checkpoint."""

    RESIDENT = enum.auto()
    OFFLOADED = enum.auto()
    DISCARDED = enum.auto()


Action = Literal["offload", "discard", "move", "drop", "restore", "refill"]
"""What a worker does with one tag. To sleep: save and release ('offload'), release only ('discard'), take the backup
to another target ('move'), give it up ('drop'). To wake: bring back what was saved ('restore'), start anew ('refill').
"""


@dataclass(frozen=True, slots=True)
class SleepOrder:
    """What workers are to do to sleep, all of it or nothing. `used`: the KV blocks that 'offload' saves."""

    level: int
    actions: tuple[tuple[str, Action], ...]
    used: UsedBlocks
    backup: BackupTarget = "auto"

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag, _ in self.actions)


@dataclass(frozen=True, slots=True)
class Released:
    """What workers did to sleep. `freed_bytes`: by how much the resident memory of their processes fell.

    `refusal`: the words of a driver that would not take memory back; None: all of it is released.
    """

    tags: tuple[str, ...]
    freed_bytes: int
    backed_up_bytes: int
    seconds: float
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class SleepReport:
    """What a `sleep` did. `freed_bytes`: by how much the resident memory of the process fell."""

    level: int
    tags: tuple[str, ...]
    freed_bytes: int
    backed_up_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class WakeReport:
    """What a `wake_up` did. `restored_bytes`: of weights and KV blocks that were put back into their places."""

    tags: tuple[str, ...]
    restored_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SleepEvent:
    """A sleep or a wake-up of an engine, by one of its three ends.

    Args:
        slept: something was released, or the engine paused.
        woke: something came back, or a pause ended.
        failed: 'sleep': what must be kept could not be saved, and nothing was released; 'wake_up': it did not come
            back as it was, and the engine is still asleep.
    """

    cause: SleepCause
    slept: SleepReport | None = None
    woke: WakeReport | None = None
    failed: Literal["sleep", "wake_up"] | None = None


@dataclass(frozen=True, slots=True)
class SleepForecast:
    """What a `sleep` would do, in the words of its report, and how long the `wake_up` of all of it would take."""

    level: int
    tags: tuple[str, ...]
    frees_bytes: int
    backs_up_bytes: int
    sleep_seconds: float
    wake_seconds: float
