"""SleepSpeeds: measured speeds of saving, restoring and releasing."""

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from lullm.arena.backup import Backup
from lullm.arena.checksum import NewDigest, Xxh3Digest
from lullm.arena.chunk_store import FileStore, MemoryStore
from lullm.device.device import Device
from lullm.errors import SleepError
from lullm.units import MIB
from lullm.worker.sleep.saving import Saving, unwritable

PROBE_BYTES = 16 * MIB
_LEAST_BYTES = 4 * MIB
"""Smaller measurements show the fixed costs rather than the speed."""


class SleepSpeeds:
    """Bytes per second of 'save TARGET', 'restore TARGET' (TARGET: ram, disk), 'release' and 'pin' (new host memory).

    The last measurement counts. A speed without one is measured with 16 MiB, less on a small disk, when it is first
    asked for.

    Args:
        device: the owner of the memory. new_digest: makes the backups' checksums; None: they have none.
        directory: the folder of the files for 'disk'; None: the system's folder for temporary files.
    """

    def __init__(self, device: Device, new_digest: NewDigest | None = Xxh3Digest, directory: Path | None = None):
        self._device = device
        self._new_digest = new_digest
        self._directory = directory
        self._speeds: dict[str, float] = {}

    def observe(self, what: str, num_bytes: int, seconds: float) -> None:
        """Note a measurement."""
        if num_bytes >= _LEAST_BYTES and seconds > 0:
            self._speeds[what] = num_bytes / seconds

    def seconds(self, what: str, num_bytes: int) -> float:
        """The expected seconds. Without a measurement it blocks for a trial of some 10 ms. Raises SleepError."""
        if num_bytes <= 0:
            return 0.0
        if what not in self._speeds:
            try:
                self._try(what.split()[-1])
            except OSError as error:
                reason = unwritable(error, self._directory) if what.endswith("disk") else error
                raise SleepError(f"a backup cannot be tried out: {reason}") from error
        return num_bytes / self._speeds[what]

    def sleep_seconds(self, saving: Saving, freed_bytes: int) -> float:
        """The expected seconds to save a tag's contents and to free its memory. Blocks and raises as `seconds` does."""
        seconds = self.seconds(f"save {saving.target}", saving.num_bytes)
        if self._device.is_accelerator and saving.target == "ram" and saving.reuses == "nothing":
            seconds += self.seconds("pin", saving.num_bytes)
        return seconds + self.seconds("release", max(freed_bytes, 0))

    def _try(self, target: str) -> None:
        if target == "pin":
            started = time.perf_counter()
            arena = self._device.new_host_arena("probe", PROBE_BYTES)
            self._speeds["pin"] = PROBE_BYTES / max(time.perf_counter() - started, 1e-9)
            arena.close()
            return
        num_bytes = self._disk_probe_bytes() if target == "disk" else PROBE_BYTES
        with contextlib.ExitStack() as stack:
            arena = self._device.new_arena("probe", num_bytes)
            stack.callback(arena.close)
            content = arena.empty((num_bytes,), torch.uint8).fill_(1)
            actions: list[tuple[str, Callable[[], object]]] = [("release", arena.release)]
            if target != "release":
                if target == "ram":
                    store: MemoryStore | FileStore = MemoryStore(self._device.new_host_arena("probe", num_bytes))
                else:
                    store = FileStore(self._directory)
                backup = Backup(store, "a probe", self._new_digest, arena.backend)
                stack.callback(backup.close)

                def restore() -> None:
                    arena.map()
                    backup.restore([content])

                actions = [(f"save {target}", lambda: backup.save([content])), *actions, (f"restore {target}", restore)]
            for what, action in actions:
                self._device.synchronize()
                started = time.perf_counter()
                action()
                self._device.synchronize()
                self._speeds.setdefault(what, num_bytes / max(time.perf_counter() - started, 1e-9))

    def _disk_probe_bytes(self) -> int:
        """At most half of what is free: a sleep may need less than the usual probe."""
        half = shutil.disk_usage(self._directory or tempfile.gettempdir()).free // 2
        return min(PROBE_BYTES, max(half // MIB, 1) * MIB)
