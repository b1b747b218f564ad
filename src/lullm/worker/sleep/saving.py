"""Saving: the plan of a sleep for the contents of one tag. `Sleeper` executes it, or forecasts its costs."""

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lullm.arena.backup import Backup
from lullm.arena.chunk_store import MemoryStore
from lullm.errors import SleepError
from lullm.machine.memory import available_memory_bytes
from lullm.types.sleep import KV_CACHE, Action, SleepCommand, UsedBlocks
from lullm.units import format_bytes
from lullm.weights.store import WeightStore

Target = Literal["ram", "disk"]

Contents = frozenset[str] | UsedBlocks
"""The contents of a backup: parameters by name, or KV blocks."""

NOTHING: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Saved:
    """A backup and its contents. `version`: of the weights in it; None: the contents are stale, or KV blocks."""

    backup: Backup
    contents: Contents
    version: int | None

    @property
    def capacity_bytes(self) -> int:
        """Bytes that can be saved into the memory of this backup; 0 for a file, which is not used again."""
        store = self.backup.store
        return store.capacity_bytes if isinstance(store, MemoryStore) else 0


@dataclass(frozen=True, slots=True)
class Saving:
    """One tag's part of a sleep.

    Attributes:
        target: where the backup is after the sleep; None: there is no backup.
        contents: the contents of that backup. num_bytes: bytes that the sleep writes into it.
        reuses: what it uses of the backup that an earlier sleep has left. 'contents': all of it is up to date.
            'memory': stale contents are overwritten.
        backup_bytes: bytes that a wake-up reads from it.
        ram_bytes: growth of the host memory of backups by the complete sleep.
    """

    tag: str
    action: Action
    target: Target
    contents: Contents = NOTHING
    num_bytes: int = 0
    reuses: Literal["nothing", "memory", "contents"] = "nothing"
    backup_bytes: int = 0
    ram_bytes: int = 0

    @property
    def releases(self) -> bool:
        """Whether the memory of the tag itself is released."""
        return self.action in ("offload", "discard")


def plan_saving(
    command: SleepCommand,
    store: WeightStore,
    block_bytes: int,
    saved: Mapping[str, Saved],
    kept: Mapping[str, Saved],
    is_accelerator: bool,
) -> list[Saving]:
    """The savings of a command for one worker, without empty moves and moves to the present place.

    Args:
        block_bytes: size of one KV block in all layers.
        saved: backups of sleeping tags. kept: backups in host memory that awake tags have left.
        is_accelerator: the device has its own memory, so that backups prefer host memory.
    """
    target: Target = ("ram" if is_accelerator else "disk") if command.backup == "auto" else command.backup
    savings = []
    for tag, action in command.actions:
        old = saved.get(tag)
        if action == "offload":
            if tag == KV_CACHE:
                savings.append(_plan_blocks(command.used, block_bytes, target, kept.get(tag)))
            else:
                savings.append(_plan_weights(tag, store, target, kept.get(tag), is_accelerator))
        elif action != "move":
            savings.append(Saving(tag, action, target, ram_bytes=-_ram_bytes(old) - _ram_bytes(kept.get(tag))))
        elif old is not None and old.backup.target != target:
            num_bytes = old.backup.num_bytes
            ram_bytes = num_bytes if target == "ram" else -num_bytes
            savings.append(
                Saving(tag, action, target, old.contents, num_bytes, backup_bytes=num_bytes, ram_bytes=ram_bytes)
            )
    return savings


def _plan_weights(tag: str, store: WeightStore, target: Target, old: Saved | None, is_accelerator: bool) -> Saving:
    """The parameters that differ from the checkpoint. For a device's weights in host memory, the fastest backup, all of
    them.
    """
    names = store.names if is_accelerator and target == "ram" else frozenset(store.modified)
    is_current = old is not None and (old.version, old.contents) == (store.version, names)  # experts may have moved
    if old is not None and is_current and target == "ram":
        return Saving(tag, "offload", target, names, 0, "contents", old.backup.num_bytes)
    return _plan_offload(tag, target, names, sum(p.nbytes for p in store.parameters(names)), old)


def _plan_blocks(used: UsedBlocks, block_bytes: int, target: Target, old: Saved | None) -> Saving:
    num_blocks = len(used.device) + len(used.host)
    return _plan_offload(KV_CACHE, target, used, num_blocks * block_bytes, old)


def _plan_offload(tag: str, target: Target, contents: Contents, num_bytes: int, old: Saved | None) -> Saving:
    if not num_bytes:
        return Saving(tag, "offload", target, ram_bytes=-_ram_bytes(old))
    if target == "ram" and old is not None and old.capacity_bytes >= num_bytes:
        return Saving(tag, "offload", target, contents, num_bytes, reuses="memory", backup_bytes=num_bytes)
    ram_bytes = (num_bytes if target == "ram" else 0) - _ram_bytes(old)
    return Saving(
        tag, "offload", target, contents, num_bytes, reuses="nothing", backup_bytes=num_bytes, ram_bytes=ram_bytes
    )


def _ram_bytes(saved: Saved | None) -> int:
    return saved.backup.num_bytes if saved is not None and saved.backup.target == "ram" else 0


def check_room(savings: list[Saving], directory: Path | None) -> None:
    """Check the free space before anything is written.

    Raises SleepError: there is too little. OSError: there is no such directory.
    """
    for target in {saving.target for saving in savings if saving.num_bytes}:
        if target == "ram":
            wanted, free, where = sum(s.ram_bytes for s in savings), available_memory_bytes(), "memory"
        else:
            where = str(directory or tempfile.gettempdir())
            wanted, free = sum(s.num_bytes for s in savings), shutil.disk_usage(where).free
        if free < wanted:
            hint = "give backup='disk'" if target == "ram" else "give a larger sleep_dir, or backup='ram'"
            raise SleepError(f"{format_bytes(wanted)} must be saved and {where} has {format_bytes(free)} left; {hint}")


def failed_saving(error: BaseException, savings: list[Saving], directory: Path | None) -> SleepError:
    """The error of a sleep whose savings failed with `error`."""
    reason = str(error)
    if isinstance(error, OSError):
        reason = error.strerror or reason
        if any(saving.target == "disk" and saving.num_bytes for saving in savings):
            reason = unwritable(error, directory)
    return SleepError(f"cannot sleep, and nothing was released: {reason}")


def unwritable(error: OSError, directory: Path | None) -> str:
    """What to say of an error of the folder for backups."""
    where = directory or tempfile.gettempdir()
    return f"{where} cannot be written to: {error.strerror or error}; give another sleep_dir, or backup='ram'"
