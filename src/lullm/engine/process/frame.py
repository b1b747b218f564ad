"""Frames: messages on a byte stream, each after its length."""

import struct
from collections.abc import Iterator
from typing import Protocol

_LENGTH = struct.Struct("<Q")
CHUNK_BYTES = 1 << 18


def framed(data: bytes) -> bytes:
    """A message with its length before it."""
    return _LENGTH.pack(len(data)) + data


class FrameReader:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The messages that `data` completes. The caller must take all of them."""
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
    """A blocking socket, or an object that reads from one."""

    def recv(self, num_bytes: int, /) -> bytes: ...


def read_frames(sock: Source) -> Iterator[bytes]:
    """All messages until the other end is closed."""
    reader = FrameReader()
    while data := _receive(sock):
        yield from reader.feed(data)


def _receive(sock: Source) -> bytes:
    """Read bytes; empty at the end of the stream, orderly or not."""
    try:
        return sock.recv(CHUNK_BYTES)
    except OSError:
        return b""
