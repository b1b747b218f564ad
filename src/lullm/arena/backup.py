"""Backup: contents of tensors with checksums, kept in memory or in a file while the tensors' memory is released.

Contents stream through chunks: while one chunk is written and hashed, the next is gathered. Threads hash beside the
copies, and `save` returns once every checksum is there, so that no later change of the backup goes unnoticed. What the
host can read is hashed where it comes from; what a device holds is hashed once it has reached the host. `restore`
verifies some chunks ahead of the copy. Copies from and to a device run beside the host (`Transfer`); with pinned memory
the bus sets the pace.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import islice
from typing import Literal

import torch

from lullm.arena.backend import Backend
from lullm.arena.checksum import ChunkHash, bytes_of, checksum
from lullm.arena.chunk_store import ChunkStore
from lullm.arena.host import HOST
from lullm.arena.transfer import Transfer
from lullm.errors import WakeUpError


class _Filling:
    """A chunk that is being filled, or that flies: its copies run."""

    def __init__(self, memory: torch.Tensor):
        self.memory = memory
        self.num_bytes = 0
        self.hash = ChunkHash()

    def take(self, piece: torch.Tensor, transfer: Transfer) -> torch.Tensor:
        """Start to copy as much of the piece as fits. Returns the rest of it."""
        place = self.memory[self.num_bytes : self.num_bytes + len(piece)]
        source = piece[: len(place)]
        transfer.copy_out(place, source)
        self.num_bytes += len(place)
        self.hash.add(source if transfer.copies_on_host(source) else place)
        return piece[len(place) :]

    @property
    def is_full(self) -> bool:
        return self.num_bytes == len(self.memory)


class Backup:
    """The contents of some tensors in a store, in the order in which they were saved.

    Args:
        what: the tensors' owner in words, for errors.
        verify: keep checksums, and compare them in `restore`.
        backend: the memory of those tensors that are not on the host.
        num_threads: threads for the checksums.
    """

    def __init__(
        self, store: ChunkStore, what: str, verify: bool = True, backend: Backend = HOST, num_threads: int = 1
    ):
        self.store = store
        self._what = what
        self._verify = verify
        self._backend = backend
        self._num_threads = num_threads
        self._lens: list[int] = []  # bytes of each chunk
        self._checksums: list[int] = []  # XXH3-64 of each chunk

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
            OSError: the disk is full, say. LullmError: a device's driver fails. The backup is incomplete then.
        """
        self._write(map(bytes_of, tensors), in_turn)

    def restore(self, places: Iterable[torch.Tensor], in_turn: bool = False) -> None:
        """Put the contents into contiguous tensors of the sizes that were saved. Blocking.

        Args:
            in_turn: the places share memory; each is complete before the iterator is asked for the next.

        Raises:
            WakeUpError: a checksum or the size differs; some places are filled. LullmError: a driver fails.
        """
        chunks = self._read()
        chunk = torch.empty(0, dtype=torch.uint8)
        with Transfer(self._backend) as transfer:
            for place in places:
                data = bytes_of(place)
                while len(data):
                    if not len(chunk):
                        if not self.store.keeps_chunks:
                            transfer.wait()  # the store reads the next chunk into a buffer that may still be copied
                        chunk = next(chunks, chunk)
                    if not len(chunk):
                        raise WakeUpError(f"the backup of {self._what} holds less than is wanted back")
                    size = min(len(chunk), len(data))
                    transfer.copy_in(data[:size], chunk[:size])
                    chunk, data = chunk[size:], data[size:]
                if in_turn:
                    transfer.wait()
        for _ in chunks:  # ends the reader
            raise WakeUpError(f"the backup of {self._what} holds more than is wanted back")

    def moved(self, store: ChunkStore) -> "Backup":
        """A backup of the same contents in another store, verified while it is copied. Raises OSError, WakeUpError."""
        other = Backup(store, self._what, self._verify, self._backend, self._num_threads)
        other._write(self._read(), in_turn=True)
        return other

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        self.store.close()

    def _write(self, pieces: Iterable[torch.Tensor], in_turn: bool) -> None:
        self._lens, self._checksums = [], []
        self.store.begin()
        checksums: list[Future[int]] = []
        hashing: list[Future[int]] = []  # those that may still run, and read pieces
        with (
            ThreadPoolExecutor(self._num_threads) as hasher,
            ThreadPoolExecutor(1) as writer,
            Transfer(self._backend) as transfer,
        ):
            pending: list[Future[None] | Future[int]] = []
            for chunk in self._filled(pieces, in_turn, transfer, hashing):
                for job in pending:
                    job.result()
                self._lens.append(chunk.num_bytes)
                pending = [writer.submit(self.store.put, chunk.memory, chunk.num_bytes)]
                if self._verify:
                    checksums.append(hasher.submit(chunk.hash.digest))
                    hashing.append(checksums[-1])
                    if not self.store.keeps_chunks:  # its buffer is filled again
                        pending.append(checksums[-1])
            for job in pending:
                job.result()
            self._checksums = [job.result() for job in checksums]
        self.store.drop_buffers()

    def _filled(
        self, pieces: Iterable[torch.Tensor], in_turn: bool, transfer: Transfer, hashing: list[Future[int]]
    ) -> Iterator[_Filling]:
        """The chunks, complete. A store that keeps chunks lets the next one be copied meanwhile.

        `hashing`: jobs of the caller, which read the pieces. With `in_turn` they end before the next piece is taken.
        """
        flying: deque[tuple[_Filling, int]] = deque()  # chunk, mark
        num_ahead = 1 if self.store.keeps_chunks else 0
        chunk: _Filling | None = None

        def landed() -> _Filling:
            chunk, mark = flying.popleft()
            transfer.wait(mark)
            return chunk

        for piece in pieces:
            while len(piece):
                chunk = chunk or _Filling(self.store.new_chunk())
                piece = chunk.take(piece, transfer)
                if chunk.is_full:
                    flying.append((chunk, transfer.mark()))
                    chunk = None
                    if len(flying) > num_ahead:
                        yield landed()
            if in_turn:
                transfer.wait()
                self._settle([one for one, _ in flying] + ([chunk] if chunk else []), hashing)
        if chunk is not None:
            flying.append((chunk, transfer.mark()))
        while flying:
            yield landed()

    def _settle(self, chunks: list[_Filling], hashing: list[Future[int]]) -> None:
        """Finish every hash over the pieces so far."""
        if self._verify:
            for chunk in chunks:
                chunk.hash.settle()
            wait(hashing)
            hashing.clear()

    def _read(self) -> Iterator[torch.Tensor]:
        """The chunks, verified; several ahead if the store keeps them, else one."""
        with ThreadPoolExecutor(self._num_threads) as reader:
            jobs = (reader.submit(self._checked, number) for number in range(len(self._lens)))
            ahead = deque(islice(jobs, self._num_threads if self.store.keeps_chunks else 1))
            while ahead:
                chunk = ahead.popleft().result()
                ahead.extend(islice(jobs, 1))
                yield chunk
        self.store.drop_buffers()

    def _checked(self, number: int) -> torch.Tensor:
        chunk = self.store.get(number, self._lens[number])
        if self._verify and checksum(chunk) != self._checksums[number]:
            raise WakeUpError(f"the backup of {self._what} is damaged: its checksum differs from the one at sleep")
        return chunk
