"""Sleep as plain data: what can be released, which blocks must survive it, and what came of it."""

from dataclasses import dataclass
from typing import Literal

SleepMode = Literal["keep", "wait", "abort"]
"""What happens to requests that are not finished: kept and continued after waking, waited for, or aborted."""

WEIGHTS = "weights"
KV_CACHE = "kv_cache"
TAGS = (WEIGHTS, KV_CACHE)


@dataclass(frozen=True, slots=True)
class UsedBlocks:
    """Block ids whose content must survive, by pool."""

    device: list[int]
    host: list[int]


@dataclass(frozen=True, slots=True)
class SleepReport:
    """What a `sleep` or `wake_up` did. `freed_bytes`: by how much the resident memory of the process fell."""

    level: int
    tags: tuple[str, ...]
    freed_bytes: int
    backed_up_bytes: int
    seconds: float
