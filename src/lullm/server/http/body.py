"""BodyReader: where a request's body ends, and what of a connection's bytes is of it."""

import re

from lullm.server.http.head import MalformedError

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_MAX_LINE = 1024  # of a chunk's size with its extensions, and of the fields behind the last chunk
_SIZE_AHEAD, _DATA, _END_AHEAD, _TRAILER = range(4)


class BodyReader:
    """Takes a body from the beginning of what has come, as far as it has.

    Args:
        length: in bytes; None: it comes in chunks (RFC 9112, 7.1).

    Attributes:
        is_complete: nothing is missing.
    """

    def __init__(self, length: int | None):
        self._missing = length or 0  # of the body, or of its present chunk
        self._state = _DATA if length is not None else _SIZE_AHEAD
        self._is_chunked = length is None
        self.is_complete = length == 0

    def take(self, data: bytearray) -> bytes:
        """Cut what is of the body off `data`. Raises MalformedError."""
        if not self._is_chunked:
            return self._cut(data)
        parts: list[bytes] = []
        while not self.is_complete and self._take_part(data, parts):
            pass
        return b"".join(parts)

    def _take_part(self, data: bytearray, parts: list[bytes]) -> bool:
        """Whether there may be more to take."""
        if self._state == _DATA:
            parts.append(self._cut(data))
            if self._missing:
                return False
            self._state = _END_AHEAD
        elif self._state == _END_AHEAD:
            if len(data) < 2:
                return False
            if data[:2] != b"\r\n":
                raise MalformedError("a chunk is longer than it says")
            del data[:2]
            self._state = _SIZE_AHEAD
        elif self._state == _SIZE_AHEAD:
            line = self._line(data)
            if line is None:
                return False
            size = _SIZE.fullmatch(line)
            if size is None:
                raise MalformedError("the size of a chunk is not a number")
            self._missing = int(size[1], 16)
            self._state = _DATA if self._missing else _TRAILER
        else:
            line = self._line(data)
            if line is None:
                return False
            self.is_complete = line == b"\r\n"  # fields behind the last chunk say nothing that is asked for here
        return True

    def _cut(self, data: bytearray) -> bytes:
        part = bytes(data[: self._missing])
        del data[: self._missing]
        self._missing -= len(part)
        self.is_complete = not self._is_chunked and self._missing == 0
        return part

    def _line(self, data: bytearray) -> bytes | None:
        end = data.find(b"\n", 0, _MAX_LINE) + 1
        if end == 0:
            if len(data) >= _MAX_LINE:
                raise MalformedError("a line between chunks is too long")
            return None
        line = bytes(data[:end])
        del data[:end]
        return line
