"""Lifecycle: the one owner of the question whether an engine is awake, and of the order in which memory goes and comes.

    awake --sleep(0)--> paused --wake_up--> awake
    awake --sleep(1 or 2, tags)--> asleep: {tags} --wake_up(tags)--> ... --> awake, once no tag is left

Requests that are kept stay in the scheduler; `check_awake` stands before everything that would compute.
"""

from collections.abc import Sequence

from lullm.errors import ConfigError, EngineAsleepError, InvalidRequestError
from lullm.executor.protocol import Executor
from lullm.kv.block_space import BlockSpaceManager
from lullm.log import get_logger
from lullm.sched.scheduler import Scheduler
from lullm.types.sleep import KV_CACHE, TAGS, WEIGHTS, SleepReport, UsedBlocks
from lullm.units import format_bytes

logger = get_logger(__name__)


class Lifecycle:
    """Puts one engine to sleep and wakes it. Not safe to share between threads."""

    def __init__(self, executor: Executor, scheduler: Scheduler, block_space: BlockSpaceManager, is_enabled: bool):
        self._executor = executor
        self._scheduler = scheduler
        self._block_space = block_space
        self._is_enabled = is_enabled
        self._is_paused = False
        self._asleep: dict[str, int] = {}  # tag -> level it sleeps at

    @property
    def is_sleeping(self) -> bool:
        return self._is_paused or bool(self._asleep)

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """What is released now, in the order in which it must be woken."""
        return tuple(tag for tag in TAGS if tag in self._asleep)

    def check_awake(self) -> None:
        """Return if everything is there. Raises EngineAsleepError otherwise."""
        if self._asleep:
            raise EngineAsleepError(f"the engine is asleep ({', '.join(self.sleeping_tags)} released); call wake_up()")
        if self._is_paused:
            raise EngineAsleepError("the engine is paused (sleep level 0); call wake_up()")

    def check_call(self, level: int, tags: Sequence[str] | None) -> None:
        """Raises ConfigError if sleep mode is off, InvalidRequestError for an unknown level or tag."""
        if not self._is_enabled:
            raise ConfigError("sleep mode is off; build the engine with enable_sleep_mode=True")
        if level not in (0, 1, 2) or isinstance(level, bool):
            raise InvalidRequestError(f"sleep level must be 0, 1 or 2, not {level!r}", "level")
        self._check_tags(tags)

    def sleep(self, level: int, tags: Sequence[str] | None) -> SleepReport:
        """Release the memory of `tags` (None: all) that is still there; returns once it is released. Idempotent.

        Level 1 keeps what running requests need: their KV blocks are saved. Level 2 keeps nothing: requests that are
        not finished are computed again after waking, so that they cannot mix KV of old and new weights.

        Raises:
            OSError: the blocks could not be saved; the engine is as it was.
        """
        if level == 0:
            self._is_paused = True
            return SleepReport(0, (), 0, 0, 0.0)
        new = tuple(tag for tag in (TAGS if tags is None else tags) if tag not in self._asleep)
        if not new:
            return SleepReport(level, (), 0, 0, 0.0)
        used = UsedBlocks([], [])
        if KV_CACHE in new or level == 2:
            if level == 2:
                self._scheduler.evict_all()
            used = self._block_space.used_blocks()
        [report] = self._executor.collective_rpc("sleep", level, new, used)
        self._asleep.update(dict.fromkeys(new, level))
        if KV_CACHE in new or level == 2:
            self._block_space.reset_prefix_cache()
        logger.info(
            "asleep (level %d, %s): %s freed, %s backed up, %.2f s",
            level,
            ", ".join(new),
            format_bytes(max(report.freed_bytes, 0)),
            format_bytes(report.backed_up_bytes),
            report.seconds,
        )
        return report

    def wake_up(self, tags: Sequence[str] | None) -> None:
        """Bring back `tags` (None: all), weights first. Idempotent. Blocks until the contents are there.

        Raises:
            WakeUpError: they did not come back as they were; what failed is still asleep.
        """
        self._check_tags(tags)
        for tag in self.sleeping_tags:
            if tags is None or tag in tags:
                self._executor.collective_rpc("wake_up", (tag,))
                del self._asleep[tag]
        if not self._asleep:
            self._is_paused = False

    def _check_tags(self, tags: Sequence[str] | None) -> None:
        unknown = sorted(set(tags or ()) - set(TAGS))
        if unknown or isinstance(tags, str):
            raise InvalidRequestError(f"sleep tags are {WEIGHTS!r} and {KV_CACHE!r}, not {tags!r}", "tags")
