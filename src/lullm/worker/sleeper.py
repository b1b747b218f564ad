"""Sleeper: releases a model runner's memory by tag and brings it back at the same addresses.

Weights on a CPU are not written anywhere: the checkpoint they came from is their backup, and checksums say whether
they came back the same. Of the KV cache only the blocks in use are saved, to a file without a name.
"""

import time
from collections.abc import Collection
from pathlib import Path

import torch

from lullm.arena.backup import Backup, checksum
from lullm.errors import LullmError, WakeUpError
from lullm.ops.attention_layout import KVCache
from lullm.types.sleep import KV_CACHE, WEIGHTS, SleepReport, UsedBlocks
from lullm.worker.device import resident_bytes
from lullm.worker.model_runner import ModelRunner


class Sleeper:
    """The sleep of one worker. The engine sees to it that nothing runs and that calls come in a legal order."""

    def __init__(self, runner: ModelRunner, directory: Path | None, verify: bool):
        self._runner = runner
        self._directory = directory
        self._verify = verify
        self._weight_checksums: dict[str, int] = {}
        self._backup: Backup | None = None
        self._used = UsedBlocks([], [])

    @torch.inference_mode()
    def sleep(self, level: int, tags: Collection[str], used: UsedBlocks) -> SleepReport:
        """Release the arenas of `tags`. The contents of `used` blocks are saved. Blocking.

        Raises:
            OSError: the blocks could not be saved (disk full); nothing has been released then.
        """
        started, resident = time.perf_counter(), resident_bytes()
        backed_up = 0
        if KV_CACHE in tags:
            backed_up = self._save_blocks(used)
        if WEIGHTS in tags:
            # After level 2 the weights may come back as others, so there is nothing to compare with.
            wanted = self._runner.model.named_parameters() if level == 1 and self._verify else ()
            self._weight_checksums = {name: checksum(parameter) for name, parameter in wanted}
        self._release(tags)
        freed = resident - resident_bytes()
        return SleepReport(level, tuple(tags), freed, backed_up, time.perf_counter() - started)

    @torch.inference_mode()
    def wake_up(self, tags: Collection[str]) -> None:
        """Bring the contents of `tags` back. Blocking.

        Raises:
            WakeUpError: they are not what they were, or cannot be read; the memory is released again.
        """
        try:
            if WEIGHTS in tags:
                self._restore_weights()
            if KV_CACHE in tags:
                self._restore_blocks()
        except (LullmError, OSError, MemoryError) as error:
            self._release(tags)
            raise WakeUpError(f"still asleep: {error}") from error
        if KV_CACHE in tags:
            self.close()

    def close(self) -> None:
        """Drop what was saved. Idempotent."""
        if self._backup is not None:
            self._backup.close()
            self._backup = None

    def _restore_weights(self) -> None:
        self._runner.fill_weights()
        for name, parameter in self._runner.model.named_parameters():
            if name in self._weight_checksums and checksum(parameter) != self._weight_checksums[name]:
                raise WakeUpError(
                    f"the weights are not what they were: {name} has another checksum than at sleep; has the "
                    "checkpoint changed? Build a new engine to use it"
                )

    def _save_blocks(self, used: UsedBlocks) -> int:
        backup = Backup(self._directory)
        try:
            for caches, block_ids in self._pools(used):
                ids = torch.tensor(block_ids, dtype=torch.int64)
                for layer in caches:
                    backup.save(cache.index_select(0, ids) for cache in layer)
        except OSError:
            backup.close()
            raise
        self._backup, self._used = backup, used
        return backup.num_bytes

    def _restore_blocks(self) -> None:
        if self._backup is None:
            return
        pools = self._pools(self._used)
        targets = [(cache, ids) for caches, ids in pools for layer in caches for cache in layer]
        shapes = (cache.new_empty((len(ids), *cache.shape[1:])) for cache, ids in targets)
        for (cache, block_ids), content in zip(targets, self._backup.restore(shapes), strict=True):
            cache.index_copy_(0, torch.tensor(block_ids, dtype=torch.int64), content)

    def _pools(self, used: UsedBlocks) -> list[tuple[list[KVCache], list[int]]]:
        pools = [(self._runner.kv_caches, used.device), (self._runner.host_kv_caches, used.host)]
        return [(caches, block_ids) for caches, block_ids in pools if block_ids]

    def _release(self, tags: Collection[str]) -> None:
        """The host pool of the KV cache sleeps with the device pool."""
        arena_tags = {"kv_cache", "kv_swap"} if KV_CACHE in tags else set()
        if WEIGHTS in tags:
            arena_tags.add("weights")
        for arena in self._runner.arenas:
            if arena.tag in arena_tags:
                arena.release()
