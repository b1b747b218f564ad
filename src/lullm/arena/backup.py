"""Backup: contents of tensors with checksums, kept in memory or in a file while the tensors' memory is released.

Contents stream through chunks, and each chunk is a job of its own (`ChunkCopies`). Memory that the host can read is
hashed in the pass that copies it (`Digest.copy`). A device's contents are hashed once they have reached the host.
`save` returns once every checksum is computed, so that it notices any later change of the backup. Copies from and to a
device run beside the host (`Transfer`); with pinned memory the bus limits the speed.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Literal

import torch

from lullm.arena.backend import Backend
from lullm.arena.checksum import NewDigest, Xxh3Digest, bytes_of, checksum
from lullm.arena.chunk_copies import ChunkCopies
from lullm.arena.chunk_store import ChunkStore
from lullm.arena.host import HOST
from lullm.arena.transfer import Transfer
from lullm.errors import WakeUpError

_MAX_THREADS = 8


@dataclass(frozen=True, slots=True)
class Manifest:
    """The lengths and checksums of a backup's chunks, for another process that reads it."""

    lens: tuple[int, ...]
    checksums: tuple[int, ...]


class Backup:
    """The contents of some tensors in a store, in the order in which they were saved.

    Args:
        what: the tensors' owner in words, for errors.
        new_digest: makes the checksums that `restore` compares; None: no checksums.
        backend: the memory of those tensors that are not on the host.
        num_threads: threads for the checksums and for the host's copies; None: one per core, and at most 8, which hash
            100 GB/s from memory, more than a device's bus carries.
        manifest: of another process's backup in this store, to be restored. Checksums of `Xxh3Digest` alone are the
            same in every process.
    """

    def __init__(
        self,
        store: ChunkStore,
        what: str,
        new_digest: NewDigest | None = Xxh3Digest,
        backend: Backend = HOST,
        num_threads: int | None = None,
        manifest: Manifest | None = None,
    ):
        self.store = store
        self._what = what
        self._new_digest = new_digest
        self._backend = backend
        self._num_threads = num_threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        self._lens = list(manifest.lens) if manifest else []  # bytes of each chunk
        self._checksums = list(manifest.checksums) if manifest else []  # of each chunk

    @property
    def manifest(self) -> Manifest:
        """For a backup that another process restores."""
        return Manifest(tuple(self._lens), tuple(self._checksums))

    @property
    def target(self) -> Literal["ram", "disk"]:
        return self.store.target

    @property
    def num_bytes(self) -> int:
        return sum(self._lens)

    def save(self, tensors: Iterable[torch.Tensor], in_turn: bool = False) -> None:
        """Replace the backup's contents by those of contiguous tensors. Blocking.

        Args:
            tensors: their computation must be done.
            in_turn: the tensors share memory; each is copied before the iterator is asked for the next.

        Raises:
            OSError: for example, the disk is full.
            LullmError: a device's driver fails. After an error the backup is incomplete.
        """
        self._write(map(bytes_of, tensors), in_turn)

    def restore(self, places: Iterable[torch.Tensor], in_turn: bool = False) -> None:
        """Copy the contents into contiguous tensors of the sizes that were saved. Blocking.

        Args:
            in_turn: the places share memory; each is complete before the iterator is asked for the next.

        Raises:
            WakeUpError: a checksum or the size differs; some places are filled.
            LullmError: a driver fails.
        """
        with (
            ThreadPoolExecutor(self._num_threads) as pool,
            ThreadPoolExecutor(1) as reader,  # not the iterator's: garbage collection would end that, in any thread
            Transfer(self._backend) as transfer,
        ):
            jobs: list[Future[int]] = []
            chunks = self._opened(transfer, pool, reader, jobs)
            chunk: ChunkCopies | None = None
            for place in places:
                data = bytes_of(place)
                while len(data):
                    if chunk is None or chunk.is_through:
                        chunk = next(chunks, None)
                    if chunk is None:
                        raise WakeUpError(f"the backup of {self._what} holds less than is wanted back")
                    data = chunk.empty(data)
                if in_turn and chunk is not None:
                    self._settle([chunk], transfer, jobs)
            if (chunk is not None and not chunk.is_through) or next(chunks, None) is not None:
                raise WakeUpError(f"the backup of {self._what} holds more than is wanted back")
        self.store.drop_buffers()

    def moved(self, store: ChunkStore) -> "Backup":
        """A backup of the same contents in another store, verified while it is copied. Raises OSError, WakeUpError."""
        other = Backup(store, self._what, self._new_digest, self._backend, self._num_threads)
        other._write(self._verified(), in_turn=True)
        return other

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        self.store.close()

    def _write(self, pieces: Iterable[torch.Tensor], in_turn: bool) -> None:
        self._lens, self._checksums = [], []
        self.store.begin()
        with (
            ThreadPoolExecutor(self._num_threads) as pool,
            ThreadPoolExecutor(1) as writer,
            Transfer(self._backend) as transfer,
        ):
            jobs: list[Future[int]] = []
            writes: list[Future[None]] = []
            for chunk in self._filled(pieces, in_turn, transfer, jobs):
                jobs.append(pool.submit(chunk.digest))
                if writes and not self.store.keeps_chunks:
                    writes[-1].result()  # the next chunk fills its buffer
                writes.append(writer.submit(self._put, chunk, jobs[-1]))
                self._lens.append(chunk.num_bytes)
            for write in writes:
                write.result()
            self._checksums = [job.result() for job in jobs]
        self.store.drop_buffers()

    def _put(self, chunk: ChunkCopies, job: Future[int]) -> None:
        job.result()
        self.store.put(chunk.chunk, chunk.num_bytes)

    def _filled(
        self, pieces: Iterable[torch.Tensor], in_turn: bool, transfer: Transfer, jobs: list[Future[int]]
    ) -> Iterator[ChunkCopies]:
        """The chunks: the device's copies have arrived, the host's copies are left to `run`.

        A store that keeps chunks lets the next one be copied meanwhile. `jobs`: those of the chunks so far.
        """
        flying: deque[tuple[ChunkCopies, int]] = deque()  # chunk, mark
        num_ahead = 1 if self.store.keeps_chunks else 0
        chunk: ChunkCopies | None = None

        def landed() -> ChunkCopies:
            chunk, mark = flying.popleft()
            transfer.wait(mark)
            return chunk

        for piece in pieces:
            while len(piece):
                chunk = chunk or ChunkCopies(self.store.new_chunk(), transfer, self._new_digest)
                piece = chunk.fill(piece)
                if chunk.is_through:
                    flying.append((chunk, transfer.mark()))
                    chunk = None
                    if len(flying) > num_ahead:
                        yield landed()
            if in_turn:
                self._settle([one for one, _ in flying] + ([chunk] if chunk else []), transfer, jobs)
        if chunk is not None:
            flying.append((chunk, transfer.mark()))
        while flying:
            yield landed()

    def _settle(self, chunks: list[ChunkCopies], transfer: Transfer, jobs: list[Future[int]]) -> None:
        """Wait until the tensors so far may change: their copies are done, and their checksums computed."""
        transfer.wait()
        for chunk in chunks:
            chunk.run()
        wait(jobs)

    def _opened(
        self, transfer: Transfer, pool: ThreadPoolExecutor, reader: ThreadPoolExecutor, jobs: list[Future[int]]
    ) -> Iterator[ChunkCopies]:
        """The chunks, to be emptied; the next is read meanwhile. Raises WakeUpError at the end: a checksum differs."""
        ahead = deque(reader.submit(self.store.get, number, size) for number, size in enumerate(self._lens[:1]))
        for number in range(len(self._lens)):
            chunk = ChunkCopies(ahead.popleft().result(), transfer, self._new_digest)
            if number + 1 < len(self._lens):
                ahead.append(reader.submit(self.store.get, number + 1, self._lens[number + 1]))
            yield chunk
            jobs.append(pool.submit(chunk.digest))
            if not self.store.keeps_chunks:  # the chunk after the next is read into its buffer
                self._check(number, jobs[-1].result())
                transfer.wait()
        for number, job in enumerate(jobs):
            self._check(number, job.result())

    def _verified(self) -> Iterator[torch.Tensor]:
        """The chunks in the store, each verified."""
        for number, size in enumerate(self._lens):
            chunk = self.store.get(number, size)
            if self._new_digest is not None:
                self._check(number, checksum(chunk, self._new_digest))
            yield chunk
        self.store.drop_buffers()

    def _check(self, number: int, found: int) -> None:
        if found != self._checksums[number]:
            raise WakeUpError(f"the backup of {self._what} is damaged: its checksum differs from the one at sleep")
