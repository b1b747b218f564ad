"""BoundedConnection: a connection of uvicorn, with bounds on their number and on heads, and time-outs both ways.

Clients of HTTP/1.0 get answers that end with their connection, and those that send no more get theirs, too.
"""

import asyncio
import re
from collections.abc import Callable, Sized
from typing import Any, cast

from lullm.server.gate.half_close import CONTINUE, PROD, HalfClose
from lullm.server.gate.refusal import Refusals

HEAD_S = 30.0
"""Seconds for the head of a request, from the connection or its first byte. A client that sends a byte now and then
(slow-loris) would hold its connection forever.
"""
WRITE_S = 300.0
"""Seconds for a client to read 48 KiB of its answer. Otherwise it would hold answer and connection forever."""
MAX_HEAD_BYTES = 1 << 16
"""httptools, uvicorn's parser, keeps a head of any size, and header fields after a body in chunks."""
_UPGRADE = re.compile(rb"\r\nupgrade(?=:)", re.IGNORECASE)
_LONG_HEAD = b"HTTP/1.1 431 Request Header Fields Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class BoundedConnection(asyncio.Protocol):
    """Passes everything on to uvicorn's protocol.

    Args:
        make_inner: makes uvicorn's protocol, which adds itself to `connections`.
        connections: the open ones.
        max_connections: further ones are refused.
        refusals: of all connections of the server.
    """

    def __init__(self, make_inner: Callable[[], Any], connections: Sized, max_connections: int, refusals: Refusals):
        self._make_inner = make_inner
        self._connections = connections
        self._max_connections = max_connections
        self._refusals = refusals
        self._inner: Any = None
        self._cycle: Any = None  # of the last complete head
        self._num_head_bytes = 0  # received after it, or after bytes of its body
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._half_close: HalfClose | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's class is not a subclass
        if len(self._connections) >= self._max_connections:
            self._refusals.refuse(self._transport)
            return
        self._inner = self._make_inner()
        self._inner.connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        is_body = self._is_busy and self._cycle.more_body
        length = len(self._cycle.body) if is_body else 0
        self._inner.data_received(data if is_body else _without_upgrade(data))
        if self._inner.cycle is not self._cycle or (is_body and self._took_body(length)):
            if self._inner.cycle is not self._cycle:
                _close_delimit(self._inner.cycle)
            self._cycle, self._num_head_bytes = self._inner.cycle, 0
        else:
            self._bound_head(len(data))
        if self._is_busy:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def _took_body(self, length: int) -> bool:
        """Whether the body has grown or is complete; otherwise chunks have a trailer."""
        return len(self._cycle.body) > length or not self._cycle.more_body or self._cycle.response_complete

    def _bound_head(self, num_bytes: int) -> None:
        """End a connection whose next head is too long already, even during an answer."""
        self._num_head_bytes += num_bytes
        if self._num_head_bytes > MAX_HEAD_BYTES:
            if not self._is_busy:
                self._transport.write(_LONG_HEAD)
            self._transport.close()

    def eof_received(self) -> bool:
        """The client sends no more. True: the connection stays until its requests have been answered."""
        if not self._may_outlast_requests:
            return False
        self._cycle.keep_alive = False
        self._half_close = HalfClose(self._transport, self._prod)
        return True

    @property
    def _may_outlast_requests(self) -> bool:
        """Whether a client that sends no more can be answered, and whether its going can be noticed meanwhile."""
        if self._inner is None or not self._is_busy or self._cycle.more_body:
            return False
        scope = self._cycle.scope
        # HTTP/1.0 knows no interim responses, lines of JSON have no comments, and TLS has no half-closed connections.
        is_mute = scope.get(PROD, True) is None if self._cycle.response_started else scope["http_version"] == "1.0"
        return not is_mute and self._transport.get_extra_info("sslcontext") is None

    def _prod(self) -> None:
        prod = self._cycle.scope.get(PROD)
        if self._inner.pipeline:  # an earlier answer is being written
            return
        if not self._cycle.response_started:
            self._transport.write(CONTINUE)
        elif prod is not None:
            prod()

    def connection_lost(self, error: Exception | None) -> None:
        if self._half_close is not None:
            self._half_close.stop()
        self._stop_timer()
        self._stop_write_timer()
        self._refusals.forget(self._transport)
        if self._inner is not None:
            self._inner.connection_lost(error)

    def pause_writing(self) -> None:
        self._write_timer = asyncio.get_running_loop().call_later(WRITE_S, self._transport.abort)
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._stop_write_timer()
        if self._inner is not None:
            self._inner.resume_writing()

    @property
    def _is_busy(self) -> bool:
        """Whether a request is being answered; its body has its own time-out."""
        cycle = self._inner.cycle
        return cycle is not None and not cycle.response_complete

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._end)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _end(self) -> None:
        self._timer = None
        if not self._is_busy:
            self._transport.close()


class _ToTheEnd(int):
    """The length that uvicorn expects of a body which ends where its connection does."""

    def __lt__(self, other: object) -> bool:
        return False

    def __sub__(self, other: object) -> "_ToTheEnd":
        return self

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


def _close_delimit(cycle: Any) -> None:
    """Let an answer in HTTP/1.0 end with its connection, before its task has begun: that version knows no chunks."""
    if cycle.scope["http_version"] == "1.0":
        cycle.chunked_encoding = False
        cycle.expected_content_length = _ToTheEnd()


def _without_upgrade(data: bytes) -> bytes:
    """Bytes that begin within a head, without its request for another protocol: there is none.

    httptools treats the rest of such a request as that protocol's. Java's HttpClient asks for 'h2c' with every first
    request, whose body was lost.
    """
    end = data.find(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nX-Upgrade", data[:end]) + data[end:] if _UPGRADE.search(data, 0, end) else data
