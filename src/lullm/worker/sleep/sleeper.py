"""Sleeper: releases one worker's memory by tag and brings it back at the same addresses.

Weights that equal their checkpoint are not saved: the checkpoint is their backup, and checksums from the first reading
verify the second one. Changed weights and the KV blocks in use are saved to host memory or to a file.

For a GPU all weights are saved to host memory, the fastest source of a wake-up. Pinning this memory takes longer than
the copy. So it stays after the wake-up (`keep_backup`), with the weights in it, and the next sleep copies them only if
they have changed. A sleep with another target releases it.

Sleep and wake-up have two phases, so that several workers do all of it or nothing: `prepare_sleep` saves and
`commit_sleep` releases; `wake_up` restores and `commit_wake_up` drops the backup.
"""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.errors import CacheSizeError, LullmError, SleepError, WakeUpError
from lullm.machine.memory import is_no_room, resident_bytes
from lullm.types.sleep import KV_CACHE, WEIGHTS, Action, Released, SleepCommand, SleepForecast, UsedBlocks
from lullm.weights.store import WeightStore
from lullm.worker.kv_pools import KVPools
from lullm.worker.setup import WorkerSetup
from lullm.worker.sleep.arena_mapping import ArenaMapping
from lullm.worker.sleep.backups import Backups
from lullm.worker.sleep.saving import NOTHING, Saved, Saving, check_room, failed_saving, plan_saving
from lullm.worker.sleep.speed import SleepSpeeds

ARENA_TAGS = {WEIGHTS: ("weights", "draft", "lora"), KV_CACHE: ("kv_cache", "kv_swap", "graphs")}
"""The tag of the weights covers those of a draft model: they never change, so its checkpoint is always their backup.
It covers the places of adapters, too, which are not saved: the adapters that were read are kept elsewhere.

The tag of the KV cache covers the host pool and the workspace of a CPU's recorded steps, too. The latter is not
saved."""


def _release(arenas: Sequence[Arena]) -> None:
    """Release the arenas. Raises LullmError: the driver refuses one; the others are released."""
    failures = []
    for arena in arenas:
        try:
            arena.release()
        except LullmError as error:
            failures.append(error)
    if failures:
        raise failures[0]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A sleep whose contents are saved and whose memory is not released yet."""

    savings: list[Saving]
    made: dict[str, Saved]
    free_bytes: int  # before anything was saved
    seconds: float


class Sleeper:
    """The sleep of one worker. Its caller makes sure that nothing runs and that commands come in a legal sequence.

    Args:
        arenas: all memory of the worker.
        draft: the weights of a draft model; None: there is none.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        store: WeightStore,
        pools: KVPools,
        arenas: list[Arena],
        draft: WeightStore | None = None,
    ):
        self._device = setup.device
        self._store = store
        self._draft = draft
        self._block_bytes = pools.block_bytes
        self._all_arenas = arenas
        self._backups = Backups(setup, store, pools, self._backend)
        self._prepared: _Prepared | None = None
        self._mapping: ArenaMapping | None = None
        self._speeds = SleepSpeeds(self._device, self._backups.new_digest, self._backups.directory)

    def pin_ahead(self) -> None:
        """Take the host memory of a first sleep of the weights in the background. The next sleep waits for it."""
        command = SleepCommand(1, ((WEIGHTS, "offload"),), UsedBlocks([], []), "ram")
        for saving in self._plan(command):
            self._backups.pin_ahead(saving)

    @torch.inference_mode()
    def prepare_sleep(self, command: SleepCommand) -> None:
        """Save what the command names. Blocking. `commit_sleep` or `cancel_sleep` comes next.

        Raises:
            SleepError: something could not be saved (disk full, no memory), or a backup that was to move is damaged.
                The worker is as it was: memory, backups, and what is kept of an earlier sleep. Other errors of a
                device are raised unchanged.
        """
        self.cancel_sleep()
        self._end_mapping()
        self._device.synchronize()
        started, free = time.perf_counter(), self._free_bytes()
        self._await_ahead()
        savings = self._plan(command)
        made: dict[str, Saved] = {}
        self._backups.pinned_bytes, self._backups.pinned_s = 0, 0.0
        try:
            check_room(savings, self._backups.directory)
            for saving in savings:
                if saving.backup_bytes:
                    made[saving.tag] = self._backups.save(saving)
        except BaseException as error:
            self._backups.undo(made)
            if isinstance(error, (OSError, SleepError, WakeUpError, CacheSizeError)) or is_no_room(error):
                raise failed_saving(error, savings, self._backups.directory) from error
            raise
        seconds = time.perf_counter() - started
        for target in {saving.target for saving in savings}:
            num_bytes = sum(saving.num_bytes for saving in savings if saving.target == target)
            pinned_s = self._backups.pinned_s if target == "ram" else 0.0
            self._speeds.observe(f"save {target}", num_bytes, seconds - pinned_s)
        self._speeds.observe("pin", self._backups.pinned_bytes, self._backups.pinned_s)
        self._prepared = _Prepared(savings, made, free, seconds)

    def commit_sleep(self) -> Released:
        """Release the memory whose contents `prepare_sleep` has saved. Blocking: it is free when this returns.

        If a driver refuses to release memory, the other memory is still released, since everything is saved and a
        wake-up works. `Released.refusal` has the driver's message.
        """
        prepared, self._prepared = self._prepared, None
        if prepared is None:
            raise LullmError("there is no sleep to commit; call prepare_sleep first")
        started, refusal = time.perf_counter(), None
        for saving in prepared.savings:
            self._backups.replace(saving.tag, prepared.made.get(saving.tag))
        for saving in prepared.savings:
            if saving.releases:
                try:
                    self._release(saving.tag)
                except LullmError as error:
                    refusal = str(error)
        self._device.trim()
        freed = self._free_bytes() - prepared.free_bytes
        seconds = time.perf_counter() - started
        self._speeds.observe("release", freed, seconds)
        tags = tuple(saving.tag for saving in prepared.savings)
        num_saved = sum(saving.num_bytes for saving in prepared.savings)
        return Released(tags, freed, num_saved, prepared.seconds + seconds, refusal)

    def cancel_sleep(self) -> None:
        """Drop the backups of `prepare_sleep`, so that the worker is as it was before. Idempotent."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            self._backups.undo(prepared.made)

    @torch.inference_mode()
    def wake_up(self, tag: str, action: Action, ahead: Sequence[str] = ()) -> int:
        """Restore the contents of one tag ('restore', 'refill'). Returns the number of bytes. Blocking.

        The backup stays until `commit_wake_up`; `cancel_wake_up` releases the memory again.

        Args:
            ahead: tags that are woken next. Their memory is mapped after this tag's, during its copies. A driver's
                refusal is ignored here: their own wake-up tries again.

        Raises:
            WakeUpError: the contents differ or cannot be read, or there is no memory; the tag is released again.
        """
        started, saved, store = time.perf_counter(), self._backups.saved.get(tag), self._store
        backup = None if saved is None else saved.backup
        num_saved = 0 if backup is None else backup.num_bytes
        try:
            mapping = self._mapping_of(tag, ahead)
            if tag == WEIGHTS and action == "refill":
                mapping.finish(self._arenas(tag))
                store.load()
            elif tag == WEIGHTS:
                names = saved.contents if saved is not None and isinstance(saved.contents, frozenset) else NOTHING
                store.restore(names, backup, self._device.synchronize, mapping.awaited)
            elif saved is not None and isinstance(saved.contents, UsedBlocks):
                places = self._backups.blocks(saved.contents).places(mapping.awaited)
                saved.backup.restore(places, in_turn=True)
                self._speeds.observe(f"restore {saved.backup.target}", num_saved, time.perf_counter() - started)
            if tag == WEIGHTS:
                self._wake_draft(action, mapping)
            mapping.finish(self._arenas(tag))
            self._device.synchronize()
            if not ahead:
                self._end_mapping()
            store.is_resident = store.is_resident or tag == WEIGHTS
        except (LullmError, OSError, MemoryError, RuntimeError) as error:
            self.cancel_wake_up(tag)
            hint = "; sleep(level=2, tags=['kv_cache']) gives them up" if tag == KV_CACHE else ""
            raise WakeUpError(f"{tag} still asleep: {error}{hint}") from error
        return store.num_bytes + self._num_draft_bytes if tag == WEIGHTS else num_saved

    def _wake_draft(self, action: Action, mapping: ArenaMapping) -> None:
        """Read the weights of a draft model again. Raises as `WeightStore.restore` and `load` do."""
        if self._draft is None:
            return
        if action == "refill":
            mapping.finish(self._arenas(WEIGHTS))
            self._draft.load()
        else:
            self._draft.restore(NOTHING, None, self._device.synchronize, mapping.awaited)

    @property
    def _num_draft_bytes(self) -> int:
        return 0 if self._draft is None else self._draft.num_bytes

    def commit_wake_up(self, tag: str) -> None:
        """Finish the wake-up of a tag; see `Backups.settle`. Idempotent."""
        self._backups.settle(tag)

    def cancel_wake_up(self, tag: str) -> None:
        """Release the memory of a tag again, and memory mapped ahead; its backup still exists. Idempotent."""
        for release in (self._end_mapping, lambda: self._release(tag)):
            with contextlib.suppress(LullmError):  # a second failure must not hide the first
                release()

    @torch.inference_mode()
    def forecast(self, command: SleepCommand) -> SleepForecast:
        """The effects of such a sleep, and the time to wake all of it. Changes nothing but spare memory.

        Raises SleepError: the disk, or the memory, has no room for what would be saved there.
        """
        if not self._backups.is_pinning:
            self._await_ahead()
        savings, resident = self._plan(command), self.resident_bytes()
        try:
            check_room(savings, self._backups.directory)
        except (OSError, SleepError) as error:
            raise failed_saving(error, savings, self._backups.directory) from error
        freed = [self._freed_bytes(saving, resident) for saving in savings]
        sleep_s = sum(map(self._speeds.sleep_seconds, savings, freed))
        wake_s = sum(map(self._wake_seconds, savings))
        # A sleep also frees what an allocator keeps for later. How much of that is resident cannot be known.
        self._device.trim()
        tags, num_saved = tuple(saving.tag for saving in savings), sum(saving.num_bytes for saving in savings)
        return SleepForecast(command.level, tags, sum(freed), num_saved, sleep_s, wake_s)

    def _freed_bytes(self, saving: Saving, resident: Mapping[str, int]) -> int:
        """What free memory would grow by, where `resident` bytes are behind each arena."""
        freed = 0
        if saving.releases:
            freed = sum(resident[arena.tag] for arena in self._arenas(saving.tag) if self._is_counted(arena))
        # On a CPU backups share the memory that is to be freed.
        return freed if self._device.is_accelerator else freed - saving.ram_bytes

    def _wake_seconds(self, saving: Saving) -> float:
        """Raises SleepError: a speed cannot be measured."""
        seconds = self._speeds.seconds(f"restore {saving.target}", saving.backup_bytes)
        if saving.tag == WEIGHTS:
            if saving.backup_bytes < self._store.num_bytes:
                seconds += self._store.fill_s
            if self._draft is not None:
                seconds += self._draft.fill_s
        return seconds

    def resident_bytes(self) -> dict[str, int]:
        """Physical memory behind each arena now, by tag."""
        return {arena.tag: self._device.resident_bytes(arena) for arena in self._all_arenas}

    def close(self) -> None:
        """Drop all backups. Idempotent."""
        self.cancel_sleep()
        with contextlib.suppress(LullmError):  # closing the arena tries again, and logs it
            self._end_mapping()
        self._await_ahead()
        for tag in ARENA_TAGS:
            self._backups.replace(tag, None)

    def _await_ahead(self) -> None:
        """Wait for the memory that is pinned in the background, and note its speed."""
        if self._backups.await_ahead():
            self._speeds.observe("pin", self._backups.pinned_bytes, self._backups.pinned_s)

    def _plan(self, command: SleepCommand) -> list[Saving]:
        return plan_saving(
            command,
            self._store,
            self._block_bytes,
            self._backups.saved,
            self._backups.kept,
            self._device.is_accelerator,
        )

    def _free_bytes(self) -> int:
        """Free bytes of the memory that a sleep releases. On a CPU only the difference of two values is meaningful."""
        device = self._device
        return device.memory_info().free_bytes if device.is_accelerator else -resident_bytes()

    def _release(self, tag: str) -> None:
        """Release a tag's memory. Raises LullmError: the driver refuses; the rest is released."""
        if tag == WEIGHTS:
            self._store.is_resident = False
        _release(self._arenas(tag))

    def _mapping_of(self, tag: str, ahead: Sequence[str]) -> ArenaMapping:
        """The running mapping of the tag's arenas, and of those in `ahead`.

        Others are mapped meanwhile only if a backup holds the whole tag. Reading a checkpoint may need memory of the
        device for a moment, which a KV cache must not have taken.
        """
        if self._mapping is None or not self._mapping.covers(self._arenas(tag)):
            self._end_mapping()
            saved = self._backups.saved.get(tag)
            is_saved = self._draft is None and saved is not None and saved.contents == self._store.names
            is_whole = tag != WEIGHTS or is_saved
            tags = [tag, *ahead] if is_whole else [tag]
            self._mapping = ArenaMapping([arena for each in tags for arena in self._arenas(each)])
        return self._mapping

    def _end_mapping(self) -> None:
        """Release memory that was mapped ahead for a wake-up that did not come. Idempotent. Raises LullmError."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            _release(mapping.end())

    def _arenas(self, tag: str) -> list[Arena]:
        return [arena for arena in self._all_arenas if arena.tag in ARENA_TAGS[tag]]

    def _is_counted(self, arena: Arena) -> bool:
        """Whether `_free_bytes` measures the arena's memory."""
        return arena.backend is self._backend

    @property
    def _backend(self) -> Backend:
        """The back end of the device's memory."""
        return self._all_arenas[0].backend
