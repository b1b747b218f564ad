"""Backups: contents of tensors, kept in memory or in a file while their own memory is released, with checksums.

Contents stream through chunks: while one is written and hashed, the next is gathered. What stays in memory is hashed
after `save` has returned, so that checksums cost a sleep next to nothing; `restore` waits for them, and verifies some
chunks ahead of the one that is copied. From a device a chunk is on its way while the one before it is taken in, and to
a device all are on their way that are verified (`Transfer`), so that the bus sets the pace if the memory is pinned. A
file is written and read past the page cache where its file system can do that (`O_DIRECT`): pages that wait to be
written would be memory that is not free. It has no name, so that a killed process leaves nothing behind.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import IO, Literal, Protocol

import torch
import xxhash

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.arena.host import HOST
from lullm.arena.transfer import Transfer
from lullm.errors import WakeUpError
from lullm.units import MIB, round_up

CHUNK_BYTES = 8 * MIB
_DISK_BLOCK = 4096


def checksum(tensor: torch.Tensor) -> int:
    """XXH3-64 of a contiguous tensor's bytes: 13 GB/s on one core, so that verifying costs little beside copying."""
    return xxhash.xxh3_64_intdigest(_bytes_of(tensor).cpu().numpy())


class ChunkStore(Protocol):
    """Where chunks are kept, by number. What `get` gives is valid until the call after the next."""

    target: Literal["ram", "disk"]
    keeps_chunks: bool
    """What was filled stays in memory as it is, and is what `get` gives."""

    def begin(self) -> None:
        """What is put from now on takes the place of what is kept."""
        ...

    def new_chunk(self) -> torch.Tensor:
        """uint8 in host memory, always of one size, to be filled and then passed to `put`. Raises OSError."""
        ...

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        """Keep the first `num_bytes` as the next chunk; all but the last are full. Raises OSError."""
        ...

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        """The first `num_bytes` of a chunk; read only. Raises OSError."""
        ...

    def rest(self) -> None:
        """Give up memory that only `put` and `get` need, until they are called again."""
        ...

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        ...


class MemoryStore:
    """Chunks in an arena of host memory, which is closed with the store and large enough for what will come."""

    target: Literal["ram", "disk"] = "ram"
    keeps_chunks = True

    def __init__(self, arena: Arena, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._arena = arena
        self._chunk_bytes = chunk_bytes
        self._chunks: list[torch.Tensor] = []
        self._num_given = 0

    @property
    def capacity_bytes(self) -> int:
        return self._arena.capacity_bytes // self._chunk_bytes * self._chunk_bytes

    def begin(self) -> None:
        self._num_given = 0

    def new_chunk(self) -> torch.Tensor:
        if self._num_given == len(self._chunks):
            self._chunks.append(self._arena.empty((self._chunk_bytes,), torch.uint8))
        self._num_given += 1
        return self._chunks[self._num_given - 1]

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        """It stands where it was filled."""

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        return self._chunks[number][:num_bytes]

    def rest(self) -> None:
        """There is nothing to give up."""

    def close(self) -> None:
        self._chunks = []
        self._arena.close()


class FileStore:
    """Chunks in a file without a name.

    Args:
        directory: in whose file system it is; None: the system's folder for temporary files.

    Raises:
        OSError: no file can be made there.
    """

    target: Literal["ram", "disk"] = "disk"
    keeps_chunks = False

    def __init__(self, directory: Path | None = None):
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="lullm-", dir=directory, buffering=0)  # noqa: SIM115
        self._buffers: list[torch.Tensor] = []
        self._num_chunks = 0
        self._turn = 0
        self._set_direct(True)

    def begin(self) -> None:
        self._num_chunks = 0

    def new_chunk(self) -> torch.Tensor:
        if not self._buffers:  # whole pages, for O_DIRECT
            memory = [mmap.mmap(-1, CHUNK_BYTES) for _ in range(2)]
            self._buffers = [torch.frombuffer(pages, dtype=torch.uint8) for pages in memory]
        self._turn ^= 1
        return self._buffers[self._turn]

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        data = memoryview(chunk.numpy())
        start, end, done = self._num_chunks * CHUNK_BYTES, round_up(num_bytes, _DISK_BLOCK), 0
        while done < end:
            try:
                done += os.pwrite(self._file.fileno(), data[done:end], start + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set_direct(False):
                    raise
            else:
                if done % _DISK_BLOCK:  # the rest is not aligned; it may fail, and then says why
                    self._set_direct(False)
        self._num_chunks += 1

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        chunk = self.new_chunk()
        wanted = memoryview(chunk.numpy())[: round_up(num_bytes, _DISK_BLOCK)]
        if os.preadv(self._file.fileno(), [wanted], number * CHUNK_BYTES) < num_bytes:
            raise OSError(errno.EIO, "the backup file is shorter than what was written to it")
        return chunk[:num_bytes]

    def rest(self) -> None:
        self._buffers = []

    def close(self) -> None:
        self._file.close()
        self._buffers = []

    def _set_direct(self, is_direct: bool) -> bool:
        """Bypass the page cache, or not; whether that changed anything."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if is_direct else flags & ~os.O_DIRECT
        if wanted == flags:
            return False
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, wanted)
        except OSError:  # a file system without it
            return False
        return True


class Backup:
    """The contents of some tensors in a store, in the order in which they were saved.

    Args:
        what: whose contents they are, for errors.
        verify: keep checksums, and compare them on return.
        backend: of the tensors that are not the host's.
        num_threads: that compute checksums of what stays in memory. One does 13 GB/s.
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
        """Take the contents of contiguous tensors, in place of what is kept. Blocking.

        Args:
            tensors: what computes them must be done.
            in_turn: they share memory: each is taken before the next is asked for.

        Raises:
            OSError: the disk is full, say. LullmError: a device's driver fails. What is kept is of no use then.
        """
        self._write(map(_bytes_of, tensors), in_turn)

    def restore(self, places: Iterable[torch.Tensor], in_turn: bool = False) -> None:
        """Put the contents into contiguous tensors of the sizes that were saved. Blocking.

        Args:
            in_turn: the places share memory: each is complete when the next one is asked for, so that a generator may
                take it away.

        Raises:
            WakeUpError: the contents are not what was saved; some places are filled. LullmError: a driver fails.
        """
        chunks = self._read()
        chunk = torch.empty(0, dtype=torch.uint8)
        with Transfer(self._backend) as transfer:
            for place in places:
                data = _bytes_of(place)
                while len(data):
                    if not len(chunk):
                        if not self.store.keeps_chunks:
                            transfer.wait()  # for the buffer that is read into next
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
        """The same contents in another store, verified on the way. This one stays. Raises OSError, WakeUpError."""
        other = Backup(store, self._what, self._verify, self._backend, self._num_threads)
        other._write(self._read(), in_turn=True)
        return other

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        self.store.close()

    def _write(self, pieces: Iterable[torch.Tensor], in_turn: bool) -> None:
        for old in self._checksums:
            old.result()  # of what is overwritten now
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
                    if self._verify and not self.store.keeps_chunks:  # before the next content takes its place
                        self._checksums.append(hasher.submit(checksum, chunk[:num_bytes]))
                        pending.append(self._checksums[-1])
                for job in pending:
                    job.result()
            if self._verify and self.store.keeps_chunks:  # nobody need wait for it
                chunks = [self.store.get(number, num_bytes) for number, num_bytes in enumerate(self._lens)]
                self._checksums = [hasher.submit(checksum, chunk) for chunk in chunks]
        finally:
            hasher.shutdown(wait=False)
        self.store.rest()

    def _filled(
        self, pieces: Iterable[torch.Tensor], in_turn: bool, transfer: Transfer
    ) -> Iterator[tuple[torch.Tensor, int]]:
        """(chunk, bytes in it), complete. Where chunks are kept, the next one is on its way by then."""
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
        """The chunks, verified; as many of them ahead as the store can give at once."""
        with ThreadPoolExecutor(self._num_threads) as reader:
            jobs = (reader.submit(self._checked, number) for number in range(len(self._lens)))
            ahead = deque(islice(jobs, self._num_threads if self.store.keeps_chunks else 1))
            while ahead:
                chunk = ahead.popleft().result()
                ahead.extend(islice(jobs, 1))
                yield chunk
        self.store.rest()

    def _checked(self, number: int) -> torch.Tensor:
        chunk = self.store.get(number, self._lens[number])
        if self._verify and checksum(chunk) != self._checksums[number].result():
            raise WakeUpError(f"the backup of {self._what} is damaged: its checksum differs from the one at sleep")
        return chunk


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
