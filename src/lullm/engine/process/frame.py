"""Frames: messages on a stream of bytes, each behind its length."""

import struct
from collections.abc import Iterator
from typing import Protocol

_LENGTH = struct.Struct("<Q")
CHUNK_BYTES = 1 << 18


def framed(data: bytes) -> bytes:
    """A message as it goes on the wire."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that are complete with `data`, all of which must be taken."""
        rest = self._rest
        rest += data
        start = 0
        while len(rest) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, start)
            end = start + _LENGTH.size + length
            if len(rest) < end:
                break
            yield bytes(rest[start + _LENGTH.size : end])
            start = end
        del rest[:start]


class Source(Protocol):
    """A blocking socket, or what reads from one."""

    def recv(self, num_bytes: int, /) -> bytes: ...


def read_frames(sock: Source) -> Iterator[bytes]:
    """All messages until the other end is closed."""
    reader = FrameReader()
    while data := _receive(sock):
        yield from reader.feed(data)


def _receive(sock: Source) -> bytes:
    """Empty at the end, an orderly one or not."""
    try:
        return sock.recv(CHUNK_BYTES)
    except OSError:
        return b""
