"""Ring: a stream of messages from one process to several, through nameless shared memory.

The memory (`memfd_create(2)`) goes away with the last process that has it, even if they are killed. The writer counts
the bytes that it has written, and each reader those that it has read. A message of any length passes in pieces, and
every reader gets every message in the order of the writes. Source of the idea: Lamport's queue of one producer and one
consumer (https://doi.org/10.1145/69624.357207), with a count per reader.
"""

import mmap
import os
import threading
from collections.abc import Callable, Sequence

from lullm.executor.mp.bell import Bell
from lullm.executor.remote.codec import Buffer
from lullm.units import KIB, MIB

RING_BYTES = 4 * MIB
"""Bytes of data. A step's plan has some kilobytes; tensors of an update pass in pieces."""

_LINE = 8
"""Words of a cache line: counters of different writers lie on different lines."""
_WRITTEN, _IS_FULL, _BEATS, _FIRST_READER = 0, _LINE, 2 * _LINE, 3 * _LINE
_HEAD_BYTES = 4 * KIB
MAX_READERS = _HEAD_BYTES // 8 // _LINE - 3
_LENGTH_BYTES = 8
_SHORT_BYTES = 16 * KIB
_PATIENCE_S = 0.05
"""A writer that waits for room checks again after so long."""


class RingMemory:
    """The memory of one ring. `fd`: memory that another process has made; None: make new memory."""

    def __init__(self, fd: int | None = None, num_bytes: int = RING_BYTES):
        if fd is None:
            fd = os.memfd_create("lullm-ring")
            os.ftruncate(fd, _HEAD_BYTES + num_bytes)
        self.fd = fd
        self._map = mmap.mmap(fd, 0)
        whole = memoryview(self._map)
        self.words = whole[:_HEAD_BYTES].cast("Q")
        self.data = whole[_HEAD_BYTES:]
        whole.release()
        self._lock = threading.Lock()

    def fence(self) -> None:
        """Order earlier loads and stores before later ones, for all processes.

        x86 needs one locked instruction, which a lock has; ARM needs a release that an acquire follows.
        """
        for _ in range(2):
            with self._lock:
                pass

    @property
    def beats(self) -> int:
        """The heartbeat count; `beat` adds one."""
        return self.words[_BEATS]

    def beat(self) -> None:
        self.words[_BEATS] += 1

    def close(self) -> None:
        self.words.release()
        self.data.release()
        self._map.close()
        os.close(self.fd)


class RingWriter:
    """The writing end. One thread at a time.

    Args:
        readers: the bells of the reading processes, by number.
    """

    def __init__(self, memory: RingMemory, readers: Sequence[Bell]):
        if len(readers) > MAX_READERS:
            raise ValueError(f"a ring has at most {MAX_READERS} readers, not {len(readers)}")
        self._memory = memory
        self._readers = readers
        self._places = [_FIRST_READER + number * _LINE for number in range(len(readers))]
        self._written = 0

    def write(self, parts: Sequence[Buffer], wait: Callable[[float], object]) -> None:
        """Write a message, the concatenation of the parts. `wait(timeout_s)` is called while there is no room.

        An error of `wait` goes on to the caller; the ring is unusable afterwards.
        """
        length = sum(map(len, parts))
        head = length.to_bytes(_LENGTH_BYTES, "little")
        # A short message goes in one copy: each piece alone takes 1.5 us.
        for part in (b"".join((head, *parts)),) if length <= _SHORT_BYTES else (head, *parts):
            rest = memoryview(part).cast("B")
            while rest:
                room = self._room() or self._wait_for_room(wait)
                piece, rest = rest[:room], rest[room:]
                self._copy(piece)
        self._publish()

    def _room(self) -> int:
        words = self._memory.words
        return len(self._memory.data) - (self._written - min(words[place] for place in self._places))

    def _wait_for_room(self, wait: Callable[[float], object]) -> int:
        memory = self._memory
        self._publish()
        while True:
            memory.words[_IS_FULL] = 1
            memory.fence()
            room = self._room()
            if room:
                memory.words[_IS_FULL] = 0
                return room
            wait(_PATIENCE_S)

    def _copy(self, piece: memoryview) -> None:
        data = self._memory.data
        start = self._written % len(data)
        self._written += len(piece)
        if start + len(piece) <= len(data):
            data[start : start + len(piece)] = piece
            return
        first = len(data) - start
        data[start:] = piece[:first]
        data[: len(piece) - first] = piece[first:]

    def _publish(self) -> None:
        self._memory.fence()  # first the bytes, then their count
        self._memory.words[_WRITTEN] = self._written
        for bell in self._readers:
            bell.ring()


class RingReader:
    """The reading end, for the reader of one number. One thread.

    Args:
        writer: the bell of the writing process, rung when it waits for room.
    """

    def __init__(self, memory: RingMemory, number: int, writer: Bell):
        self._memory = memory
        self._place = _FIRST_READER + number * _LINE
        self._writer = writer
        self._taken = memory.words[self._place]
        self._length = bytearray()
        self._message: bytearray | None = None
        self._num_filled = 0

    @property
    def has_news(self) -> bool:
        """Whether `read` would find data."""
        return self._memory.words[_WRITTEN] != self._taken

    def read(self) -> bytearray | None:
        """The next message, once all of it has come. Takes the pieces that have come."""
        memory = self._memory
        num_bytes = memory.words[_WRITTEN] - self._taken
        if not num_bytes:
            return None
        memory.fence()
        if self._message is None and not self._length:
            whole = self._whole(num_bytes)
            if whole is not None:
                self._make_room()
                return whole
        if self._message is None:
            self._length += self._take(_LENGTH_BYTES - len(self._length))
            if len(self._length) == _LENGTH_BYTES:
                self._message = bytearray(int.from_bytes(self._length, "little"))
                self._length, self._num_filled = bytearray(), 0
        message = self._message
        if message is not None:
            piece = self._take(len(message) - self._num_filled)
            message[self._num_filled : self._num_filled + len(piece)] = piece
            self._num_filled += len(piece)
        self._make_room()
        if message is None or self._num_filled < len(message):
            return None
        self._message = None
        return message

    def _whole(self, num_bytes: int) -> bytearray | None:
        """The next message, if all of it lies here in one piece, as short ones mostly do. Takes it."""
        data = self._memory.data
        start = self._taken % len(data)
        first = start + _LENGTH_BYTES
        end = first + int.from_bytes(data[start:first], "little")
        if end - start > num_bytes or end > len(data) or first > len(data):
            return None
        self._taken += end - start
        return bytearray(data[first:end])

    def _make_room(self) -> None:
        """Tell the writer how much was copied."""
        memory = self._memory
        memory.fence()  # first copy the bytes, then free their room
        memory.words[self._place] = self._taken
        memory.fence()
        if memory.words[_IS_FULL]:
            self._writer.ring()

    def _take(self, most: int) -> Buffer:
        """At most `most` bytes of those that have come. A view, unless they wrap around the end."""
        data = self._memory.data
        num_bytes = min(most, self._memory.words[_WRITTEN] - self._taken)
        start = self._taken % len(data)
        self._taken += num_bytes
        end = start + num_bytes
        if end <= len(data):
            return data[start:end]
        return bytes(data[start:]) + bytes(data[: end - len(data)])
