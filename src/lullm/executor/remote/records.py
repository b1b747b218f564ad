"""Log records of a worker's process, which the engine's process logs with the rank."""

import contextlib
import logging
from collections.abc import Callable

import msgspec

_MOST_CHARS = 16_000
"""Characters of one record: a datagram holds that many of any kind."""


class _Forwarding(logging.Handler):
    def __init__(self, send: Callable[[bytes], object]):
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError, ValueError):  # the engine's process has ended, and this one will
            self._send(msgspec.msgpack.encode([record.levelno, record.name, self.format(record)[:_MOST_CHARS]]))


def log_over(send: Callable[[bytes], object], level: int) -> None:
    """In a worker's process: send lullm's records here and nowhere else from now on."""
    root = logging.getLogger("lullm")
    root.handlers[:] = [_Forwarding(send)]
    root.propagate = False
    root.setLevel(level)


def log_record_of(rank: int, data: bytes | bytearray) -> None:
    """Read a record in the engine's process. Raises msgspec.DecodeError, ValueError: not a record."""
    level, name, text = msgspec.msgpack.decode(data)
    logging.getLogger(name).log(level, "[rank %d] %s", rank, text)
