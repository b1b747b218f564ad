"""ChunkStore: keeps the chunks of a backup in an arena of host memory, or in a file.

The file bypasses the page cache where its file system allows it (`O_DIRECT`), because pages that wait to be written
would take the memory that a sleep frees. A sleep's file has no name, so that a killed process leaves nothing behind.
"""

import errno
import fcntl
import mmap
import os
import tempfile
from pathlib import Path
from typing import IO, Literal, Protocol

import torch

from lullm.arena.arena import Arena
from lullm.units import MIB, round_up

CHUNK_BYTES = 8 * MIB
_DISK_BLOCK = 4096


class ChunkStore(Protocol):
    """Chunks by number. A chunk from `get` or `new_chunk` is valid until the second such call after it."""

    target: Literal["ram", "disk"]
    keeps_chunks: bool
    """Every chunk stays in the memory where it was filled, and `get` returns that memory."""

    def begin(self) -> None:
        """Start again: the next `put` stores chunk 0."""
        ...

    def new_chunk(self) -> torch.Tensor:
        """uint8 in host memory, always of one size, to fill and to pass to `put`. Raises OSError."""
        ...

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        """Keep the first `num_bytes` as the next chunk; all chunks except the last are full. Raises OSError."""
        ...

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        """The first `num_bytes` of a chunk; read only. Raises OSError."""
        ...

    def drop_buffers(self) -> None:
        """Free the memory that only `put` and `get` need; the next call takes it again."""
        ...

    def close(self) -> None:
        """Drop the contents. Idempotent."""
        ...


class MemoryStore:
    """Chunks in an arena of host memory. The arena must be large enough; `close` closes it, too."""

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
        """Nothing to do: the chunk is in the arena already."""

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        return self._chunks[number][:num_bytes]

    def drop_buffers(self) -> None:
        """Nothing to do: it has none."""

    def close(self) -> None:
        self._chunks = []
        self._arena.close()


class FileStore:
    """Chunks in a file: without a name, or with one that outlives the process (`create`, `open`).

    Args:
        directory: the file is in its file system; None: the system's folder for temporary files.
        file: opened without a buffer, in place of a new one in `directory`.

    Raises:
        OSError: no file can be made there.
    """

    target: Literal["ram", "disk"] = "disk"
    keeps_chunks = False

    def __init__(self, directory: Path | None = None, file: IO[bytes] | None = None):
        self._file = file or tempfile.TemporaryFile(prefix="lullm-", dir=directory, buffering=0)  # noqa: SIM115
        self._buffers: list[torch.Tensor] = []
        self._num_chunks = 0
        self._turn = 0
        self._set_direct(True)

    @classmethod
    def create(cls, path: Path) -> "FileStore":
        """A new file that only its owner may read. Raises OSError: also if it exists."""
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "r+b", buffering=0)
        return cls(file=file)

    @classmethod
    def open(cls, path: Path) -> "FileStore":
        """A file that `create` made, to be read. Raises OSError."""
        return cls(file=path.open("rb", buffering=0))

    def begin(self) -> None:
        self._num_chunks = 0

    def new_chunk(self) -> torch.Tensor:
        if not self._buffers:  # whole pages, for O_DIRECT
            memory = [mmap.mmap(-1, CHUNK_BYTES) for _ in range(2)]
            self._buffers = [torch.frombuffer(pages, dtype=torch.uint8) for pages in memory]
        self._turn ^= 1
        return self._buffers[self._turn]

    def put(self, chunk: torch.Tensor, num_bytes: int) -> None:
        data = chunk.numpy().data
        start, end, done = self._num_chunks * CHUNK_BYTES, round_up(num_bytes, _DISK_BLOCK), 0
        while done < end:
            try:
                done += os.pwrite(self._file.fileno(), data[done:end], start + done)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._set_direct(False):
                    raise
            else:
                if done % _DISK_BLOCK:  # the remainder is not aligned; its write may fail with the reason
                    self._set_direct(False)
        self._num_chunks += 1

    def get(self, number: int, num_bytes: int) -> torch.Tensor:
        chunk = self.new_chunk()
        wanted = chunk.numpy().data[: round_up(num_bytes, _DISK_BLOCK)]
        if os.preadv(self._file.fileno(), [wanted], number * CHUNK_BYTES) < num_bytes:
            raise OSError(errno.EIO, "the backup file is shorter than what was written to it")
        return chunk[:num_bytes]

    def sync(self) -> None:
        """Wait until the file's contents would survive a loss of power. Raises OSError."""
        os.fsync(self._file.fileno())

    def drop_buffers(self) -> None:
        self._buffers = []

    def close(self) -> None:
        self._file.close()
        self._buffers = []

    def _set_direct(self, is_direct: bool) -> bool:
        """Bypass the page cache, or stop doing so. Returns whether the flag has changed."""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        wanted = flags | os.O_DIRECT if is_direct else flags & ~os.O_DIRECT
        if wanted == flags:
            return False
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, wanted)
        except OSError:  # the file system does not support it
            return False
        return True
