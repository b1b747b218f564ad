"""Frames: messages of any length over a stream socket, each with its kind."""

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Literal

from lullm.executor.remote.codec import Buffer
from lullm.units import KIB

FrameKind = Literal["hello", "command", "answer", "beat", "log"]
_KINDS: tuple[FrameKind, ...] = ("hello", "command", "answer", "beat", "log")
_HEADER = struct.Struct("<QB")
_JOINED_BYTES = 64 * KIB
"""Messages up to so many bytes are sent in one call: a packet for each part would cost more than the copy."""


class FrameSocket:
    """One end of a connection. Any thread may send, one receives."""

    def __init__(self, connection: socket.socket):
        if connection.family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def lose_after(self, seconds: float | None) -> None:
        """Make `receive` raise TimeoutError after `seconds` without data."""
        whole = int(seconds or 0)
        microseconds = int(((seconds or 0) - whole) * 1e6)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", whole, microseconds))

    def send(self, kind: FrameKind, parts: Sequence[Buffer] = ()) -> None:
        """Send the concatenation of the parts. Blocks while there is no room. Raises OSError: the other end is gone."""
        length = sum(map(len, parts))
        header = _HEADER.pack(length, _KINDS.index(kind))
        whole: Sequence[Buffer] = [header, *parts] if length > _JOINED_BYTES else [b"".join([header, *parts])]
        with self._sending:
            for part in whole:
                self._socket.sendall(part)

    def receive(self, most_bytes: int | None = None) -> tuple[FrameKind, bytearray]:
        """The next message. Blocks.

        Raises:
            EOFError: the other end has closed the connection.
            OSError: it is gone; TimeoutError: see `lose_after`.
            ValueError: the message is longer than `most_bytes`, or of unknown kind.
        """
        length, code = _HEADER.unpack(self._exactly(_HEADER.size))
        if code >= len(_KINDS) or (most_bytes is not None and length > most_bytes):
            raise ValueError("what has come is no message")
        return _KINDS[code], self._exactly(length)

    def _exactly(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        rest = memoryview(data)
        while rest:
            try:
                count = self._socket.recv_into(rest)
            except BlockingIOError:  # the kernel's error when SO_RCVTIMEO has passed
                raise TimeoutError("nothing has come in time") from None
            if count == 0:
                raise EOFError("the connection was closed")
            rest = rest[count:]
        return data

    def end(self) -> None:
        """End the stream: both ends, and a thread that waits here, notice it. Idempotent."""
        with contextlib.suppress(OSError):  # it was closed by the other end
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, and close the descriptor; no other thread may wait here."""
        self.end()
        self._socket.close()
