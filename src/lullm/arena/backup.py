"""Backups: contents of tensors, kept in memory or in a file while their own memory is released, with checksums.

Contents stream through chunks: while one is written and hashed, the next is gathered. What stays in memory is hashed
after `save` has returned, so that checksums cost a sleep next to nothing; `restore` waits for them. A file is written
and read past the page cache where its file system can do that (`O_DIRECT`): pages that wait to be written would be
memory that is not free. It has no name, so that a killed process leaves nothing behind.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Literal, Protocol

import torch
import xxhash

from lullm.arena.arena import Arena
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

    def new_chunk(self) -> torch.Tensor:
        """CHUNK_BYTES of uint8 in host memory, to be filled and then passed to `put`. Raises OSError."""
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

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._chunks: list[torch.Tensor] = []

    def new_chunk(self) -> torch.Tensor:
        return self._arena.empty((CHUNK_BYTES,), torch.uint8)

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        self._chunks.append(chunk)

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
        what: whose contents they are, for errors. verify: keep checksums, and compare them on return.
    """

    def __init__(self, store: ChunkStore, what: str, verify: bool = True):
        self._store = store
        self._what = what
        self._verify = verify
        self._lens: list[int] = []  # bytes of each chunk
        self._checksums: list[Future[int]] = []

    @property
    def target(self) -> Literal["ram", "disk"]:
        return self._store.target

    @property
    def num_bytes(self) -> int:
        return sum(self._lens)

    def save(self, tensors: Iterable[torch.Tensor]) -> None:
        """Take the contents of contiguous tensors, once. Blocking. Raises OSError: the disk is full, say."""
        self._write(_bytes_of(tensor) for tensor in tensors)

    def restore(self, places: Iterable[torch.Tensor]) -> None:
        """Put the contents into contiguous tensors of the sizes that were saved. Blocking.

        Each place is complete when the next one is asked for, so that a generator may take it away.

        Raises:
            WakeUpError: the contents are not what was saved; some places are filled.
        """
        chunks = self._read()
        chunk = torch.empty(0, dtype=torch.uint8)
        for place in places:
            data = _bytes_of(place)
            while len(data):
                if not len(chunk):
                    chunk = next(chunks, chunk)
                if not len(chunk):
                    raise WakeUpError(f"the backup of {self._what} holds less than is wanted back")
                size = min(len(chunk), len(data))
                data[:size].copy_(chunk[:size])
                chunk, data = chunk[size:], data[size:]
        for _ in chunks:  # ends the reader
            raise WakeUpError(f"the backup of {self._what} holds more than is wanted back")

    def moved(self, store: ChunkStore) -> "Backup":
        """The same contents in another store, verified on the way. This one stays. Raises OSError, WakeUpError."""
        other = Backup(store, self._what, self._verify)
        other._write(self._read())
        return other

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        self._store.close()

    def _write(self, pieces: Iterable[torch.Tensor]) -> None:
        hasher = ThreadPoolExecutor(1)
        try:
            with ThreadPoolExecutor(1) as writer:
                pending: list[Future[None] | Future[int]] = []
                for chunk, num_bytes in self._filled(pieces):
                    for job in pending:
                        job.result()
                    self._lens.append(num_bytes)
                    pending = [writer.submit(self._store.put, chunk, num_bytes)]
                    if self._verify and not self._store.keeps_chunks:  # before the next content takes its place
                        self._checksums.append(hasher.submit(checksum, chunk[:num_bytes]))
                        pending.append(self._checksums[-1])
                for job in pending:
                    job.result()
            if self._verify and self._store.keeps_chunks:  # nobody need wait for it
                chunks = [self._store.get(number, num_bytes) for number, num_bytes in enumerate(self._lens)]
                self._checksums = [hasher.submit(checksum, chunk) for chunk in chunks]
        finally:
            hasher.shutdown(wait=False)
        self._store.rest()

    def _filled(self, pieces: Iterable[torch.Tensor]) -> Iterator[tuple[torch.Tensor, int]]:
        chunk, used = None, 0
        for piece in pieces:
            while len(piece):
                chunk = self._store.new_chunk() if chunk is None else chunk
                size = min(CHUNK_BYTES - used, len(piece))
                chunk[used : used + size].copy_(piece[:size])
                used, piece = used + size, piece[size:]
                if used == CHUNK_BYTES:
                    yield chunk, used
                    chunk, used = None, 0
        if chunk is not None:
            yield chunk, used

    def _read(self) -> Iterator[torch.Tensor]:
        with ThreadPoolExecutor(1) as reader:
            ahead = [reader.submit(self._checked, 0)] if self._lens else []
            for number in range(1, len(self._lens) + 1):
                chunk = ahead.pop().result()
                if number < len(self._lens):
                    ahead.append(reader.submit(self._checked, number))
                yield chunk
        self._store.rest()

    def _checked(self, number: int) -> torch.Tensor:
        chunk = self._store.get(number, self._lens[number])
        if self._verify and checksum(chunk) != self._checksums[number].result():
            raise WakeUpError(f"the backup of {self._what} is damaged: its checksum differs from the one at sleep")
        return chunk


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)
