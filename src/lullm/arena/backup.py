"""Backup: contents of tensors with checksums, kept in memory or in a file while the tensors' memory is released.

Contents stream through chunks: while one chunk is written and hashed, the next is gathered. A store in memory is hashed
after `save` has returned, so that checksums do not slow a sleep. `restore` waits for these checksums and verifies some
chunks ahead of the copy. Copies from and to a device run beside the host (`Transfer`); with pinned memory the bus sets
the pace.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Literal

import torch
import xxhash

from lullm.arena.backend import Backend
from lullm.arena.chunk_store import ChunkStore
from lullm.arena.host import HOST
from lullm.arena.transfer import Transfer
from lullm.errors import WakeUpError


def checksum(tensor: torch.Tensor) -> int:
    """XXH3-64 of a contiguous tensor's bytes. One core does 13 GB/s, which is faster than most copies."""
    return xxhash.xxh3_64_intdigest(_bytes_of(tensor).cpu().numpy().data)


class Backup:
    """The contents of some tensors in a store, in the order in which they were saved.

    Args:
        what: the tensors' owner in words, for errors.
        verify: keep checksums, and compare them in `restore`.
        backend: the memory of those tensors that are not on the host.
        num_threads: threads for the checksums of a store in memory.
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
        self._checksums: list[Future[int]] = []

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
        self._write(map(_bytes_of, tensors), in_turn)

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
                data = _bytes_of(place)
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
        for old in self._checksums:
            old.result()  # these threads still read the chunks that are overwritten below
        self._lens, self._checksums = [], []
        self.store.begin()
        hasher = ThreadPoolExecutor(self._num_threads)
        try:
            with ThreadPoolExecutor(1) as writer, Transfer(self._backend) as transfer:
                pending: list[Future[None] | Future[int]] = []
                for chunk, num_bytes in self._filled(pieces, in_turn, transfer):
                    for job in pending:
                        job.result()
                    self._lens.append(num_bytes)
                    pending = [writer.submit(self.store.put, chunk, num_bytes)]
                    if self._verify and not self.store.keeps_chunks:  # before the buffer is filled again
                        self._checksums.append(hasher.submit(checksum, chunk[:num_bytes]))
                        pending.append(self._checksums[-1])
                for job in pending:
                    job.result()
            if self._verify and self.store.keeps_chunks:  # in the background: `_checked` waits for it
                chunks = [self.store.get(number, num_bytes) for number, num_bytes in enumerate(self._lens)]
                self._checksums = [hasher.submit(checksum, chunk) for chunk in chunks]
        finally:
            hasher.shutdown(wait=False)
        self.store.drop_buffers()

    def _filled(
        self, pieces: Iterable[torch.Tensor], in_turn: bool, transfer: Transfer
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """(chunk, bytes in it), complete. A store that keeps chunks lets the next one be copied meanwhile."""
        flying: deque[tuple[torch.Tensor, int, int]] = deque()  # chunk, bytes, mark
        num_ahead = 1 if self.store.keeps_chunks else 0
        chunk, used = None, 0

        def landed() -> tuple[torch.Tensor, int]:
            chunk, used, mark = flying.popleft()
            transfer.wait(mark)
            return chunk, used

        for piece in pieces:
            while len(piece):
                chunk = self.store.new_chunk() if chunk is None else chunk
                size = min(len(chunk) - used, len(piece))
                transfer.copy_out(chunk[used : used + size], piece[:size])
                used, piece = used + size, piece[size:]
                if used == len(chunk):
                    flying.append((chunk, used, transfer.mark()))
                    chunk, used = None, 0
                    if len(flying) > num_ahead:
                        yield landed()
            if in_turn:
                transfer.wait()
        if chunk is not None:
            flying.append((chunk, used, transfer.mark()))
        while flying:
            yield landed()

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
        if self._verify and checksum(chunk) != self._checksums[number].result():
            raise WakeUpError(f"the backup of {self._what} is damaged: its checksum differs from the one at sleep")
        return chunk


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
