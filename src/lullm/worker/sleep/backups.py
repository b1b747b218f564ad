"""Backups: the saved weights and KV blocks of one worker, in host memory or in a file."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from lullm.arena.backend import Backend
from lullm.arena.backup import Backup
from lullm.arena.chunk_store import CHUNK_BYTES, FileStore, MemoryStore
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.types.sleep import KV_CACHE, WEIGHTS, UsedBlocks
from lullm.units import MIB, format_bytes, round_up
from lullm.weights.store import WeightStore
from lullm.worker.kv_pools import KVPools
from lullm.worker.setup import WorkerSetup
from lullm.worker.sleep.block_gather import BlockGather
from lullm.worker.sleep.saving import NOTHING, Saved, Saving, Target, check_room

logger = get_logger(__name__)

_DEVICE_CHUNK_BYTES = 64 * MIB
"""Largest chunk of a backup in pinned memory: 1.2 ms over the bus. With 16 MiB an H100's sleep with new weights took
0.37 s instead of 0.31."""

_DEVICE_STEP_BYTES = 16 * MIB
"""A small backup is one chunk, a multiple of this: pinning memory takes longer than filling it."""


class Backups:
    """Makes and holds the backups for the `Saving`s of a sleep.

    Args:
        backend: the back end of the saved memory.

    Attributes:
        directory: the folder for files; None: the system's folder for temporary ones.
        new_digest: makes the checksums; None: `verify_wake` is off.
        pinned_bytes, pinned_s: host memory taken for backups, and the seconds for it, since the caller last set them to
            0. For a GPU it is pinned, which takes longer than filling it.
        saved: backups of sleeping tags. kept: backups in host memory that awake tags have left.
    """

    def __init__(self, setup: WorkerSetup, store: WeightStore, pools: KVPools, backend: Backend):
        self._device = setup.device
        self._store = store
        self._pools = pools
        self._backend = backend
        self.new_digest = setup.ops.new_digest if setup.config.verify_wake else None
        self._keeps = setup.config.keep_backup
        self.directory = Path(setup.config.sleep_dir) if setup.config.sleep_dir else None
        self.pinned_bytes, self.pinned_s = 0, 0.0
        self.saved: dict[str, Saved] = {}
        self.kept: dict[str, Saved] = {}
        self._ahead: Future[Saved] | None = None

    def save(self, saving: Saving) -> Saved:
        """Write the backup of a plan, or reuse a kept one. Raises OSError, CacheSizeError, WakeUpError."""
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
        if saving.target == "ram" and saving.tag in self.kept:  # stale and too small; freed before the new one is made
            self.kept.pop(saving.tag).backup.close()
        with self._new_store(saving.num_bytes, saving.target) as store:
            what = "the KV cache" if saving.tag == KV_CACHE else "changed weights"
            backup = Backup(store, what, self.new_digest, self._backend)
            self._write(backup, saving)
        return Saved(backup, saving.contents, version)

    def pin_ahead(self, saving: Saving) -> None:
        """Take the host memory of this saving of the weights on a separate thread, as if a sleep had left it."""
        pool = ThreadPoolExecutor(1)
        self._ahead = pool.submit(self._pinned, saving)
        pool.shutdown(wait=False)

    def await_ahead(self) -> bool:
        """Wait for the memory that `pin_ahead` takes; whether it takes any. On failure the next sleep takes its own."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            try:
                self.kept.setdefault(WEIGHTS, ahead.result())
            except (LullmError, OSError, MemoryError, RuntimeError) as error:
                logger.warning("the host memory of the first sleep was not taken ahead: %s", str(error))
        return ahead is not None

    @property
    def is_pinning(self) -> bool:
        """Whether `pin_ahead` is still taking memory."""
        return self._ahead is not None and not self._ahead.done()

    def _pinned(self, saving: Saving) -> Saved:
        check_room([saving], self.directory)
        with self._new_store(saving.num_bytes, "ram") as store:
            logger.info("sleep: %s of host memory pinned in %.1f s", format_bytes(self.pinned_bytes), self.pinned_s)
            return Saved(Backup(store, "changed weights", self.new_digest, self._backend), NOTHING, None)

    def undo(self, made: dict[str, Saved]) -> None:
        """Close the new backups. One that uses kept memory stays kept."""
        for tag, saved in made.items():
            if tag not in self.kept or self.kept[tag].backup is not saved.backup:
                saved.backup.close()

    def replace(self, tag: str, made: Saved | None) -> None:
        """Replace every backup of the tag by `made`."""
        for backups in (self.saved, self.kept):
            old = backups.pop(tag, None)
            if old is not None and (made is None or old.backup is not made.backup):
                old.backup.close()
        if made is not None:
            self.saved[tag] = made

    def settle(self, tag: str) -> None:
        """Drop the backup of a tag that is awake, or keep its memory for the next sleep. Idempotent."""
        saved = self.saved.pop(tag, None)
        if saved is None:
            return
        if saved.backup.target == "ram" and self._keeps:
            self.kept[tag] = saved
        else:
            saved.backup.close()

    def blocks(self, used: UsedBlocks) -> BlockGather:
        """A gather of these KV blocks, which saves them or puts them back."""
        return BlockGather(self._device, self._pools.all_device, self._pools.all_host, used)

    def _write(self, backup: Backup, saving: Saving) -> None:
        if isinstance(saving.contents, UsedBlocks):
            backup.save(self.blocks(saving.contents).contents(), in_turn=True)
        else:
            backup.save(self._store.parameters(saving.contents))

    @contextmanager
    def _new_store(self, num_bytes: int, target: Target) -> Iterator[MemoryStore | FileStore]:
        """A store for a backup; an error inside the `with` closes it."""
        store: MemoryStore | FileStore
        if target == "disk":
            store = FileStore(self.directory)
        else:
            chunk_bytes = _device_chunk_bytes(num_bytes) if self._device.is_accelerator else CHUNK_BYTES
            started = time.perf_counter()
            arena = self._device.new_host_arena("backup", round_up(num_bytes, chunk_bytes))
            self.pinned_bytes += arena.capacity_bytes
            self.pinned_s += time.perf_counter() - started
            store = MemoryStore(arena, chunk_bytes)
        try:
            yield store
        except BaseException:
            store.close()
            raise


def _device_chunk_bytes(num_bytes: int) -> int:
    """The size of the chunks of a device's backup of so many bytes."""
    return min(_DEVICE_CHUNK_BYTES, round_up(max(num_bytes, 1), _DEVICE_STEP_BYTES))
