"""Backups: what one worker has saved of its weights and KV blocks, in host memory or in a file."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lullm.arena.backend import Backend
from lullm.arena.backup import Backup
from lullm.arena.chunk_store import CHUNK_BYTES, FileStore, MemoryStore
from lullm.types.sleep import KV_CACHE, WEIGHTS, UsedBlocks
from lullm.units import MIB, round_up
from lullm.weights.store import WeightStore
from lullm.worker.block_gather import BlockGather
from lullm.worker.kv_pools import KVPools
from lullm.worker.saving import NOTHING, Saved, Saving, Target
from lullm.worker.setup import WorkerSetup

_DEVICE_CHUNK_BYTES = 16 * MIB
"""Of a backup in pinned memory: 0.3 ms over the bus, while the host needs 0.1 ms to prepare the next chunk."""

_NUM_HASH_THREADS = 8
"""At most, in front of a device: 100 GB/s, so that checksums stay behind the bus."""


class Backups:
    """Makes the backups that a sleep's `Saving`s ask for, and keeps them.

    Args:
        backend: of the memory that is saved.

    Attributes:
        directory: of files; None: the system's folder for temporary ones.
        saved: of what sleeps, by tag. kept: in host memory, of what is awake, by tag.
    """

    def __init__(self, setup: WorkerSetup, store: WeightStore, pools: KVPools, backend: Backend):
        self._device = setup.device
        self._store = store
        self._pools = pools
        self._backend = backend
        self._verify = setup.config.verify_wake
        self._keeps = setup.config.keep_backup
        self.directory = Path(setup.config.sleep_dir) if setup.config.sleep_dir else None
        self.saved: dict[str, Saved] = {}
        self.kept: dict[str, Saved] = {}

    def save(self, saving: Saving) -> Saved:
        """Write what the plan says, or find it written. Raises OSError, CacheSizeError, WakeUpError."""
        if saving.reuses == "contents":
            return self.kept[saving.tag]
        if saving.action == "move":
            old = self.saved[saving.tag]
            with self._new_store(saving.num_bytes, saving.target) as store:
                return replace(old, backup=old.backup.moved(store))
        version = self._store.version if saving.tag == WEIGHTS else None
        if saving.reuses == "memory":
            kept = self.kept[saving.tag]
            self.kept[saving.tag] = replace(kept, contents=NOTHING, version=None)  # until it is written
            self._write(kept.backup, saving)
            self.kept[saving.tag] = replace(kept, contents=saving.contents, version=version)
            return self.kept[saving.tag]
        if saving.target == "ram" and saving.tag in self.kept:  # stale, too small, and in the way of the new one
            self.kept.pop(saving.tag).backup.close()
        with self._new_store(saving.num_bytes, saving.target) as store:
            what = "the KV cache" if saving.tag == KV_CACHE else "changed weights"
            backup = Backup(store, what, self._verify, self._backend, self._num_threads)
            self._write(backup, saving)
        return Saved(backup, saving.contents, version)

    def undo(self, made: dict[str, Saved]) -> None:
        """Close the new backups. One that uses kept memory stays kept."""
        for tag, saved in made.items():
            if tag not in self.kept or self.kept[tag].backup is not saved.backup:
                saved.backup.close()

    def replace(self, tag: str, made: Saved | None) -> None:
        """Let `made` take the place of every backup of the tag."""
        for backups in (self.saved, self.kept):
            old = backups.pop(tag, None)
            if old is not None and (made is None or old.backup is not made.backup):
                old.backup.close()
        if made is not None:
            self.saved[tag] = made

    def settle(self, tag: str) -> None:
        """The tag is awake for good: its backup goes, or stays as memory for the next sleep. Idempotent."""
        saved = self.saved.pop(tag, None)
        if saved is None:
            return
        if saved.backup.target == "ram" and self._keeps:
            self.kept[tag] = saved
        else:
            saved.backup.close()

    def blocks(self, used: UsedBlocks) -> BlockGather:
        """The contents of these KV blocks, to be saved or put back."""
        return BlockGather(self._device, self._pools.device, self._pools.host, used)

    def _write(self, backup: Backup, saving: Saving) -> None:
        if isinstance(saving.contents, UsedBlocks):
            backup.save(self.blocks(saving.contents).contents(), in_turn=True)
        else:
            backup.save(self._store.parameters(saving.contents))

    @contextmanager
    def _new_store(self, num_bytes: int, target: Target) -> Iterator[MemoryStore | FileStore]:
        """A place for a backup, which is closed if the backup cannot be made."""
        store: MemoryStore | FileStore
        if target == "disk":
            store = FileStore(self.directory)
        else:
            chunk_bytes = _DEVICE_CHUNK_BYTES if self._device.is_accelerator else CHUNK_BYTES
            store = MemoryStore(self._device.new_host_arena("backup", round_up(num_bytes, chunk_bytes)), chunk_bytes)
        try:
            yield store
        except BaseException:
            store.close()
            raise

    @property
    def _num_threads(self) -> int:
        """For the checksums of a backup in memory."""
        if not self._device.is_accelerator:
            return 1  # nothing waits for it, and requests of other engines want the cores
        return min(_NUM_HASH_THREADS, len(os.sched_getaffinity(0)))
