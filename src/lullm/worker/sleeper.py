"""Sleeper: releases a model runner's memory by tag and brings it back at the same addresses.

Weights as their checkpoint has them are not written again: the checkpoint is their backup, and checksums from when they
were read say whether they came back the same. Weights that were changed since, and the KV blocks in use, are saved to
host memory or to a file.

Host memory in front of a GPU takes all weights: from there they are back soonest. It is pinned, which takes longer than
the copy, so that it stays after the wake-up (`keep_backup`), with the weights in it: the next sleep copies them only if
they have changed since. A sleep that does not keep them in host memory gives it back.
"""

import contextlib
import dataclasses
import errno
import os
import shutil
import tempfile
import time
from pathlib import Path

import torch

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.arena.backup import Backup
from lullm.arena.chunk_store import CHUNK_BYTES, FileStore, MemoryStore
from lullm.errors import CacheSizeError, LullmError, WakeUpError
from lullm.machine.memory import available_memory_bytes, resident_bytes
from lullm.types.sleep import KV_CACHE, WEIGHTS, Action, SleepForecast, SleepOrder, SleepReport, UsedBlocks
from lullm.units import MIB, format_bytes, round_up
from lullm.weights.store import WeightStore
from lullm.worker.block_gather import BlockGather
from lullm.worker.kv_pools import KVPools
from lullm.worker.setup import WorkerSetup
from lullm.worker.speed import SleepSpeeds

ARENA_TAGS = {WEIGHTS: ("weights",), KV_CACHE: ("kv_cache", "kv_swap", "graphs")}
"""The host pool of the KV cache sleeps with the device pool, and so does the workspace of a CPU's recorded steps, in
which nothing is worth keeping."""

_DEVICE_CHUNK_BYTES = 16 * MIB
"""Of a backup in pinned memory: 0.3 ms over the bus, in which the host does what it has to for the next chunk (0.1)."""

_NUM_HASH_THREADS = 8
"""At most, in front of a device: 100 GB/s, so that checksums stay behind the bus."""


class Sleeper:
    """The sleep of one worker. The engine sees to it that nothing runs and that orders come in a legal sequence.

    Args:
        arenas: all memory of the worker.
    """

    def __init__(self, setup: WorkerSetup, store: WeightStore, pools: KVPools, arenas: list[Arena]):
        config = setup.config
        self._device = setup.device
        self._store = store
        self._pools = pools
        self._all_arenas = arenas
        self._directory = Path(config.sleep_dir) if config.sleep_dir else None
        self._verify = config.verify_wake
        self._keep_backup = config.keep_backup
        self._backups: dict[str, Backup] = {}
        self._kept: dict[str, Backup] = {}
        self._kept_version = -1  # of the weights in there
        self._saved_blocks = UsedBlocks([], [])
        self._saved_weights: frozenset[str] = frozenset()
        self._speeds = SleepSpeeds(self._device, self._directory)

    @torch.inference_mode()
    def sleep(self, order: SleepOrder) -> tuple[SleepReport, str | None]:
        """Do what the order says. Blocking: memory is free when it returns.

        Returns:
            What came of it, and what the driver said if it would not take memory back; that is no reason to stop
            half-way: everything is saved, and waking works.

        Raises:
            OSError: something could not be saved (disk full); then nothing has changed.
            WakeUpError: a backup that was to move is damaged; then nothing has changed.
        """
        self._device.synchronize()
        started, free = time.perf_counter(), self._free_bytes()
        order = self._needed(order)
        made: dict[str, Backup] = {}
        num_saved = sum(self._num_saved_bytes(tag, action, order) for tag, action in order.actions)
        try:
            self._check_room(num_saved, order)
            for tag, action in order.actions:
                backup = self._make_backup(tag, action, order)
                if backup is not None:
                    made[tag] = backup
        except BaseException as error:
            for backup in made.values():
                backup.close()
            if isinstance(error, CacheSizeError):  # no memory to save to, or through
                raise OSError(errno.ENOMEM, str(error)) from error
            raise
        saved = time.perf_counter()
        targets = {backup.target for backup in made.values()}
        failure = None
        for tag, _ in order.actions:
            self._drop(tag)
            if tag in made:
                self._backups[tag] = made[tag]
        for tag, action in order.actions:
            if action in ("offload", "discard"):
                try:
                    self._release(tag)
                except LullmError as error:
                    failure = str(error)
        self._device.trim()
        freed = self._free_bytes() - free
        for target in targets:
            self._speeds.observe(f"save {target}", num_saved, saved - started)
        ended = time.perf_counter()
        self._speeds.observe("release", freed, ended - saved)
        return SleepReport(order.level, order.tags, freed, num_saved, ended - started), failure

    @torch.inference_mode()
    def wake_up(self, tag: str, action: Action) -> int:
        """Bring the contents of one tag back ('restore', 'refill'); how many bytes. Blocking.

        Raises:
            WakeUpError: they are not what they were, cannot be read, or there is no memory; it is released again.
        """
        started, backup = time.perf_counter(), self._backups.get(tag)
        num_saved = 0 if backup is None else backup.num_bytes
        store = self._store
        try:
            for arena in self._arenas(tag):
                arena.map()
            if tag == WEIGHTS:
                if action == "refill":
                    store.load()
                else:
                    store.restore(self._saved_weights, backup, self._device.synchronize)
                store.is_resident = True
            elif backup is not None:
                backup.restore(self._blocks(self._saved_blocks).places(), in_turn=True)
                self._speeds.observe(f"restore {backup.target}", num_saved, time.perf_counter() - started)
            self._device.synchronize()
        except (LullmError, OSError, MemoryError, torch.OutOfMemoryError) as error:
            with contextlib.suppress(LullmError):  # the first error says why
                self._release(tag)
            hint = "; sleep(level=2, tags=['kv_cache']) gives them up" if tag == KV_CACHE else ""
            raise WakeUpError(f"{tag} still asleep: {error}{hint}") from error
        if backup is not None and backup.target == "ram" and self._keep_backup:
            self._kept[tag] = self._backups.pop(tag)
        else:
            self._drop(tag)
        return store.num_bytes if tag == WEIGHTS else num_saved

    @torch.inference_mode()
    def forecast(self, order: SleepOrder) -> SleepForecast:
        """What `sleep(order)` would do, and how long waking all of it would take. Changes nothing but spare memory."""
        order = self._needed(order)
        frees = num_saved = 0
        resident = self.resident_bytes()
        sleep_s = wake_s = 0.0
        for tag, action in order.actions:
            held, old = self._num_saved_bytes(tag, action, order), self._backups.get(tag)
            if old is None and self._is_kept(tag, action, order):
                old = self._kept[tag]
            old_bytes = 0 if old is None else old.num_bytes
            target = self._target(order) if action in ("offload", "move") or old is None else old.target
            released = 0
            if action in ("offload", "discard"):
                released = sum(resident[arena.tag] for arena in self._arenas(tag) if self._is_counted(arena))
            if not self._device.is_accelerator:  # whose memory is not where backups are
                if old is not None and old.target == "ram" and (action == "drop" or held):
                    released += old_bytes
                released -= held if target == "ram" else 0
            frees += released
            num_saved += held
            kept = 0 if action in ("discard", "drop") else held or old_bytes
            sleep_s += self._speeds.seconds(f"save {target}", held) + self._speeds.seconds("release", max(released, 0))
            wake_s += self._speeds.seconds(f"restore {target}", kept)
            if tag == WEIGHTS and kept < self._store.num_bytes:
                wake_s += self._store.fill_s
        # A sleep frees what an allocator keeps for later, too, and nobody knows how much of that is resident.
        self._device.trim()
        return SleepForecast(order.level, order.tags, frees, num_saved, sleep_s, wake_s)

    def resident_bytes(self) -> dict[str, int]:
        """Physical memory behind each arena now, by tag."""
        return {arena.tag: self._device.resident_bytes(arena) for arena in self._all_arenas}

    def close(self) -> None:
        """Drop what was saved. Idempotent."""
        for tag in ARENA_TAGS:
            self._drop(tag)

    def _make_backup(self, tag: str, action: Action, order: SleepOrder) -> Backup | None:
        """What keeps what the action is to keep, in the target that the order wants; None: nothing is to be kept."""
        is_kept, num_bytes = self._is_kept(tag, action, order), self._num_saved_bytes(tag, action, order)
        old = self._kept.pop(tag, None)
        if is_kept:
            self._saved_weights = self._store.names
            return old
        if not num_bytes:
            if tag == WEIGHTS:
                self._saved_weights = frozenset()
            if old is not None:
                old.close()
            return None
        backup = self._backup_for(old, tag, num_bytes, self._target(order))
        try:
            if action == "move":
                return self._backups[tag].moved(backup.store)
            if tag == KV_CACHE:
                self._saved_blocks = order.used
                backup.save(self._blocks(order.used).contents(), in_turn=True)
            else:
                self._saved_weights = self._weights_to_save(order)
                self._kept_version = self._store.version
                backup.save(self._store.parameters(self._saved_weights))
            return backup
        except BaseException:
            backup.close()
            raise

    def _backup_for(self, old: Backup | None, tag: str, num_bytes: int, target: str) -> Backup:
        """The old one if there is room in it, else a new one."""
        if old is not None:
            if target == "ram" and isinstance(old.store, MemoryStore) and old.store.capacity_bytes >= num_bytes:
                return old
            old.close()
        what = "the KV cache" if tag == KV_CACHE else "changed weights"
        store = self._new_store(num_bytes, target)
        return Backup(store, what, self._verify, self._backend, self._num_threads)

    def _new_store(self, num_bytes: int, target: str) -> MemoryStore | FileStore:
        if target == "disk":
            return FileStore(self._directory)
        chunk_bytes = _DEVICE_CHUNK_BYTES if self._device.is_accelerator else CHUNK_BYTES
        arena = self._device.new_host_arena("backup", round_up(num_bytes, chunk_bytes))
        return MemoryStore(arena, chunk_bytes)

    def _is_kept(self, tag: str, action: Action, order: SleepOrder) -> bool:
        """Whether what the action is to keep stands in host memory since an earlier sleep."""
        return (
            tag == WEIGHTS
            and action == "offload"
            and tag in self._kept
            and self._target(order) == "ram"
            and self._kept_version == self._store.version
        )

    def _weights_to_save(self, order: SleepOrder) -> frozenset[str]:
        """Names of the parameters that the checkpoint is no backup of."""
        if self._device.is_accelerator and self._target(order) == "ram":
            return self._store.names
        return frozenset(self._store.modified)

    def _num_saved_bytes(self, tag: str, action: Action, order: SleepOrder) -> int:
        """Bytes that the action writes."""
        if action == "move":
            return self._backups[tag].num_bytes
        if action != "offload" or self._is_kept(tag, action, order):
            return 0
        if tag == WEIGHTS:
            return sum(parameter.nbytes for parameter in self._store.parameters(self._weights_to_save(order)))
        return self._blocks(order.used).num_bytes

    def _needed(self, order: SleepOrder) -> SleepOrder:
        """The order without moves to where a backup is already, or of nothing."""
        target = self._target(order)
        there = [tag for tag in ARENA_TAGS if tag not in self._backups or self._backups[tag].target == target]
        actions = tuple((tag, action) for tag, action in order.actions if action != "move" or tag not in there)
        return dataclasses.replace(order, actions=actions)

    def _target(self, order: SleepOrder) -> str:
        if order.backup == "auto":
            return "ram" if self._device.is_accelerator else "disk"
        return order.backup

    def _free_bytes(self) -> int:
        """Of the memory that is to be released; on a CPU only differences mean something."""
        device = self._device
        return device.memory_info().free_bytes if device.is_accelerator else -resident_bytes()

    def _check_room(self, wanted: int, order: SleepOrder) -> None:
        """Refuse before anything is written what can be seen not to fit. Raises OSError."""
        if not wanted:
            return
        if self._target(order) == "ram":
            free, where = available_memory_bytes() + sum(kept.num_bytes for kept in self._kept.values()), "memory"
        else:
            where = str(self._directory or tempfile.gettempdir())
            free = shutil.disk_usage(where).free
        if free < wanted:
            code = errno.ENOMEM if where == "memory" else errno.ENOSPC
            raise OSError(code, f"{format_bytes(wanted)} must be saved and {where} has {format_bytes(free)} left")

    def _blocks(self, used: UsedBlocks) -> BlockGather:
        return BlockGather(self._device, self._pools.device, self._pools.host, used)

    def _release(self, tag: str) -> None:
        """Raises LullmError: the driver refuses; the rest is released."""
        if tag == WEIGHTS:
            self._store.is_resident = False
        failures = []
        for arena in self._arenas(tag):
            try:
                arena.release()
            except LullmError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _arenas(self, tag: str) -> list[Arena]:
        return [arena for arena in self._all_arenas if arena.tag in ARENA_TAGS[tag]]

    def _is_counted(self, arena: Arena) -> bool:
        """Whether it is of the memory that `_free_bytes` speaks of."""
        return arena.backend is self._backend

    @property
    def _backend(self) -> Backend:
        """Of the device's memory."""
        return self._all_arenas[0].backend

    @property
    def _num_threads(self) -> int:
        """For the checksums of a backup in memory."""
        if not self._device.is_accelerator:
            return 1  # nothing waits for it, and requests of other engines want the cores
        return min(_NUM_HASH_THREADS, len(os.sched_getaffinity(0)))

    def _drop(self, tag: str) -> None:
        for backups in (self._backups, self._kept):
            backup = backups.pop(tag, None)
            if backup is not None:
                backup.close()
