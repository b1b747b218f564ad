"""Lifecycle: the one owner of an engine's sleep state, and of the order in which memory is released and restored.

    awake --sleep(0)--> paused --wake_up--> awake
    awake --sleep(1 or 2, tags)--> asleep: {tags} --wake_up(tags)--> ... --> awake, once no tag is left

Each tag has a state of its own, which changes by `TRANSITIONS`; the engine's state follows from those of its tags. Kept
requests stay in the scheduler; `check_awake` guards everything that computes.

KV is valid only with the weights it was computed with. If the weights have another version than the KV, saved KV
included, `drop_stale_kv` drops it: requests keep their tokens and are computed again with the new weights.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lullm.engine.lora.adapters import Adapters
from lullm.errors import ConfigError, EngineAsleepError, EngineDeadError, InvalidRequestError, SleepError
from lullm.executor.executor import Executor
from lullm.log import get_logger
from lullm.sched.scheduler import Scheduler
from lullm.types.sleep import (
    KV_CACHE,
    TAGS,
    WAKE_TAGS,
    WEIGHTS,
    Action,
    Released,
    Residence,
    SleepCommand,
    SleepForecast,
    SleepOptions,
    SleepReport,
    SleepState,
    UsedBlocks,
    WakeReport,
    check_awake,
    check_tags,
)
from lullm.units import format_bytes

logger = get_logger(__name__)

Wish = Literal["sleep 1", "sleep 2", "wake_up"]
"""A caller's wish for a tag: asleep with a backup (level 1), asleep without one (level 2), or awake."""


@dataclass(frozen=True, slots=True)
class Transition:
    """A wish's action on one tag, and where the tag's contents are afterwards; `action` None: nothing to do."""

    action: Action | None
    to: Residence


_RESIDENT, _OFFLOADED, _DISCARDED = Residence.RESIDENT, Residence.OFFLOADED, Residence.DISCARDED

TRANSITIONS: dict[tuple[Residence, Wish], Transition] = {
    (_RESIDENT, "sleep 1"): Transition("offload", _OFFLOADED),
    (_RESIDENT, "sleep 2"): Transition("discard", _DISCARDED),
    (_RESIDENT, "wake_up"): Transition(None, _RESIDENT),
    (_OFFLOADED, "sleep 1"): Transition("move", _OFFLOADED),  # if the caller names another target
    (_OFFLOADED, "sleep 2"): Transition("drop", _DISCARDED),
    (_OFFLOADED, "wake_up"): Transition("restore", _RESIDENT),
    (_DISCARDED, "sleep 1"): Transition(None, _DISCARDED),
    (_DISCARDED, "sleep 2"): Transition(None, _DISCARDED),
    (_DISCARDED, "wake_up"): Transition("refill", _RESIDENT),
}
"""By state of a tag and wish. A transition happens only if its action succeeds."""


class Lifecycle:
    """Puts one engine to sleep and wakes it. Not safe to share between threads."""

    def __init__(self, executor: Executor, scheduler: Scheduler, is_enabled: bool, adapters: Adapters | None = None):
        self._adapters = adapters
        self._executor = executor
        self._scheduler = scheduler
        self._block_space = scheduler.block_space
        self._is_enabled = is_enabled
        self._is_paused = False
        self._residence = dict.fromkeys(TAGS, _RESIDENT)
        self._kv_version = executor.weights_version  # the version of the weights that computed all KV

    @property
    def is_sleeping(self) -> bool:
        """Whether something is released, or the engine paused."""
        return self.state != "awake"

    @property
    def sleeping_tags(self) -> tuple[str, ...]:
        """Tags of the memory that is released now, in the order in which they must be woken."""
        return tuple(tag for tag in TAGS if self._residence[tag] is not _RESIDENT)

    @property
    def state(self) -> SleepState:
        """Whether the engine is awake and, if not, how deep it sleeps."""
        tags = self.sleeping_tags
        if not tags:
            return "paused" if self._is_paused else "awake"
        if tags != TAGS:
            return "partial"
        return "weights_offloaded" if self._residence[WEIGHTS] is _OFFLOADED else "discard_all"

    def check_awake(self) -> None:
        """Check that no memory is released. Raises EngineAsleepError otherwise."""
        check_awake(self.state, self.sleeping_tags)

    def check(self, options: SleepOptions) -> None:
        """Check that the engine can sleep with these options. Raises ConfigError: sleep mode is off;
        InvalidRequestError.

        A pause releases no memory, so every engine can pause.
        """
        if not self._is_enabled and options.level:
            raise ConfigError("sleep mode is off; build the engine with enable_sleep_mode=True")
        if options.keep_prefix_cache and not self._block_space.enable_prefix_caching:
            raise InvalidRequestError(
                "there is no prefix cache to keep: enable_prefix_caching is off", "keep_prefix_cache"
            )

    def sleep(self, options: SleepOptions) -> SleepReport:
        """Release the memory of the tags that is still there; returns once it is released. The engine handles modes.

        A tag that sleeps already goes deeper if the level is deeper, and its backup moves if `backup` names another
        target; otherwise it stays as it is.

        Level 1 backs up the state that running requests need: their KV blocks, and weights that differ from the
        checkpoint. Level 2 backs up nothing: after waking, unfinished requests are computed again with the weights at
        that time.

        Raises:
            SleepError: a backup failed, and the engine is as before. Or the operating system did not take memory back;
                then the engine sleeps, and nothing is lost.
        """
        if options.level == 0:
            self._is_paused = True
            return SleepReport(0, (), 0, 0, 0.0)
        self.drop_stale_kv()
        command = self._command(options)
        if not command.actions:
            return SleepReport(options.level, (), 0, 0, 0.0)
        released = self._release(command, options.keep_prefix_cache)
        logger.info(
            "asleep (level %d, %s): %s freed, %s backed up, %.2f s",
            command.level,
            ", ".join(command.tags),
            format_bytes(max(released.freed_bytes, 0)),
            format_bytes(released.backed_up_bytes),
            released.seconds,
        )
        if released.refusal is not None:
            raise SleepError(f"asleep, but {released.refusal}")
        return SleepReport(
            command.level, released.tags, released.freed_bytes, released.backed_up_bytes, released.seconds
        )

    def forecast(self, options: SleepOptions) -> SleepForecast:
        """Predict memory and time of such a `sleep`. Changes nothing. Raises SleepError: speeds cannot be measured."""
        command = self._command(options) if options.level else SleepCommand(0, (), UsedBlocks([], []))
        return self._executor.forecast_sleep(command)

    def wake_up(self, tags: Sequence[str] | None) -> WakeReport:
        """Restore the memory of `tags` (None: all), weights first. Idempotent. Blocks until the contents are there.

        Raises:
            WakeUpError: there is no memory for a tag, or its contents differ from those before the sleep. All that
                slept is asleep again, so that no engine that cannot work holds memory.
        """
        check_tags(tags, WAKE_TAGS)
        started, restored, woken = time.perf_counter(), 0, []
        ahead = [tag for tag in self.sleeping_tags if tags is None or tag in tags]
        try:
            while ahead:
                tag = ahead.pop(0)
                restored += self._restore(tag, ahead)
                woken.append(tag)
        except BaseException:
            for tag in reversed(woken):
                self._executor.cancel_wake_up(tag)
            raise
        for tag in woken:
            self._executor.commit_wake_up(tag)
            self._residence[tag] = _RESIDENT
        if not self.sleeping_tags:
            self._is_paused = False
        report = WakeReport(tuple(woken), restored, time.perf_counter() - started)
        if woken:
            logger.info(
                "awake (%s): %s restored, %.2f s", ", ".join(woken), format_bytes(report.restored_bytes), report.seconds
            )
        return report

    def _restore(self, tag: str, ahead: Sequence[str]) -> int:
        """Restore one tag, whose backups stay; returns the number of bytes. Raises as `wake_up` does."""
        if tag == KV_CACHE:
            self.drop_stale_kv()
        action = TRANSITIONS[self._residence[tag], "wake_up"].action
        assert action is not None, "the tag sleeps"
        num_bytes = self._executor.wake_up(tag, action, tuple(ahead))
        if tag == KV_CACHE and not num_bytes:  # no block is in use
            self._executor.reset_kv_scales()
        return num_bytes

    @property
    def has_stale_kv(self) -> bool:
        """Whether `drop_stale_kv` has work to do. Cheap, since every step calls it."""
        return self._executor.weights_version != self._kv_version

    def drop_stale_kv(self) -> None:
        """Drop KV that older weights have computed. Cheap when there is none."""
        if not self.has_stale_kv:
            return
        self._kv_version = self._executor.weights_version
        if self._residence[KV_CACHE] is _OFFLOADED:
            self._release(SleepCommand(2, ((KV_CACHE, "drop"),), UsedBlocks([], [])))
            logger.info("the saved KV cache is dropped: the weights have changed since")
        else:
            self.forget_kv()

    def forget_kv(self) -> None:
        """Drop the KV of all requests and all cached prefixes; the requests are computed again."""
        self._scheduler.evict_all()
        self._block_space.reset_prefix_cache(str(self._kv_version).encode())
        self._executor.reset_kv_scales()

    def reload_weights(self, checkpoint: Path | None = None) -> None:
        """Read the weights from their checkpoint again, or from another one, which wake-ups read from then on.

        Without another one, weights that were pushed after the weights woke, while the KV cache still sleeps, are newer
        than the checkpoint and stay. Trainers ask for a reload between the two wake-ups to restore weights that level 2
        has dropped, and may have pushed their own by then.

        Raises:
            EngineAsleepError: the weights are asleep.
            ModelLoadError, OSError: the checkpoint cannot be read. After these, and after any other error, the weights
                are asleep (level 2), and `wake_up` reads the checkpoint that they had.
        """
        if self._residence[WEIGHTS] is not _RESIDENT:
            raise EngineAsleepError("the weights are asleep; wake_up() reads them from their checkpoint again")
        if not checkpoint and self._residence[KV_CACHE] is not _RESIDENT and self._executor.has_pushed_weights():
            logger.info("reload_weights: weights that were pushed since they woke stay, the rest was just read")
            return
        try:
            self._executor.reload_weights(checkpoint)
        except EngineDeadError:
            raise
        except BaseException:  # of any kind, Ctrl-C included: old and new weights are mixed
            self._release(SleepCommand(2, ((WEIGHTS, "discard"),), UsedBlocks([], [])))
            logger.warning("the checkpoint was not read again: the weights are asleep (level 2)")
            raise
        finally:
            self.drop_stale_kv()

    def _command(self, options: SleepOptions) -> SleepCommand:
        wish = _wish(options.level)
        actions: list[tuple[str, Action]] = []
        for tag in TAGS if options.tags is None else [tag for tag in TAGS if tag in options.tags]:
            action = TRANSITIONS[self._residence[tag], wish].action
            if action is not None and not (action == "move" and options.backup == "auto"):
                actions.append((tag, action))
        used = UsedBlocks([], [])
        if (KV_CACHE, "offload") in actions and not self.has_stale_kv:
            used = self._block_space.used_blocks(options.keep_prefix_cache)
        return SleepCommand(options.level, tuple(actions), used, options.backup)

    def _release(self, command: SleepCommand, keep_prefix_cache: bool = False) -> Released:
        """All workers save, then all release. Raises SleepError: one could not save; nothing has changed."""
        self._executor.prepare_sleep(command)
        released = self._executor.commit_sleep()
        self._block_space.tiles.forget()
        for tag in command.tags:
            self._residence[tag] = TRANSITIONS[self._residence[tag], _wish(command.level)].to
        if WEIGHTS in command.tags and self._adapters is not None:
            if self._residence[WEIGHTS] is _DISCARDED:
                self._adapters.forget_read()
            else:
                self._adapters.forget_places()
        if KV_CACHE in command.tags and self._residence[KV_CACHE] is _DISCARDED:
            self.forget_kv()
        elif (KV_CACHE, "offload") in command.actions and not keep_prefix_cache:
            self._block_space.forget_cached()
        return released


def _wish(level: int) -> Wish:
    return "sleep 1" if level == 1 else "sleep 2"
