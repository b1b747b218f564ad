"""HttpConnection: one client's connection, as a protocol of uvicorn's server: HTTP/1.1 with bounds and time-outs.

uvicorn's own protocol costs 0.25 ms more for a short streamed answer: its parser is general, and written in Python.
"""

import asyncio
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from starlette.types import ASGIApp, Scope

from lullm.log import get_logger
from lullm.server.http.body import BodyReader
from lullm.server.http.exchange import Exchange
from lullm.server.http.head import Head, MalformedError, take_head

logger = get_logger(__name__)

HEAD_S = 30.0
"""For the head of a request, from the connection or its first byte. A client that sends a byte now and then
(slow-loris) would hold its connection for ever."""
WRITE_S = 300.0
"""For a client to read 48 KiB of its answer. One that does not read would hold answer and connection for ever."""
MAX_UNREAD_BYTES = 1 << 16
"""Of a body that the application has not read, or of requests behind it: more is left in the socket."""
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\nContent-Length: 0\r\n\r\n"
_MALFORMED = b"Invalid HTTP request received."
_MALFORMED_HEAD = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n" % len(_MALFORMED)
)


class HttpConnection(asyncio.Protocol):
    """Requests one after the other, each answered before the next is begun.

    Args:
        app: answers. state: of uvicorn's server: its open connections, its tasks, its headers of every answer.
        keep_alive_s: for the next request. max_connections: one more is answered with 503 and closed.
    """

    def __init__(self, app: ASGIApp, state: Any, keep_alive_s: float, max_connections: int):
        self._app = app
        self._state = state
        self._keep_alive_s = keep_alive_s
        self._max_connections = max_connections
        self._loop = asyncio.get_running_loop()
        self._data = bytearray()  # that came and was not taken
        self._exchange: Exchange | None = None
        self._body = BodyReader(0)
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._reads_head = True
        self._is_paused = False
        self._writable: asyncio.Future[None] | None = None  # set while the client reads too slowly
        self.stays = True
        self.transport: Any = None

    # -- asyncio's protocol --------------------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        if len(self._state.connections) >= self._max_connections:
            transport.write(_FULL)
            transport.close()
            return
        self._state.connections.add(self)
        self._server = _place(transport.get_extra_info("sockname"))
        self._client = _place(transport.get_extra_info("peername"))
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._set_timer(HEAD_S)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._data += data
        try:
            self._read()
        except MalformedError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        return False  # a client that says no more is one that has gone

    def connection_lost(self, error: Exception | None) -> None:
        self._state.connections.discard(self)
        self._set_timer(None)
        self.resume_writing()
        if self._exchange is not None:
            self._exchange.leave()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()
        self._write_timer = self._loop.call_later(WRITE_S, self.transport.abort)

    def resume_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if self._writable is not None:
            self._writable.set_result(None)
            self._writable = None

    # -- uvicorn's server ----------------------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close once the present answer is complete."""
        self.stays = False
        if self._exchange is None:
            self.transport.close()

    # -- for the exchange; see `Peer` ----------------------------------------------------------------------------

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = self._state.default_headers
        return headers

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    @property
    def is_full(self) -> bool:
        return self._writable is not None

    async def drained(self) -> None:
        while self._writable is not None:
            await asyncio.shield(self._writable)

    def read_on(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self.transport.resume_reading()
        if self._data:
            self._loop.call_soon(self.data_received, b"")

    def end_exchange(self) -> None:
        self._exchange = None
        if not self.stays or not self._body.is_complete:  # nobody wants the rest of that body
            self.transport.close()
            return
        self._set_timer(self._keep_alive_s)
        self._reads_head = False
        self.read_on()

    def close(self) -> None:
        self.transport.close()

    # -- reading -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take what can be taken of what has come. Raises MalformedError."""
        if self._exchange is None:
            self._begin()
        if self._exchange is not None and not self._body.is_complete:
            part = self._body.take(self._data)
            if part or self._body.is_complete:
                self._pause_if(self._exchange.feed(part, self._body.is_complete))
        self._pause_if(len(self._data))

    def _begin(self) -> None:
        """Begin the exchange whose head has come."""
        head = take_head(self._data)
        if head is None:
            if self._data and not self._reads_head:
                self._reads_head = True
                self._set_timer(HEAD_S)
            return
        self._set_timer(None)
        self.stays &= head.stays
        self._body = BodyReader(head.length)
        self._exchange = Exchange(self, head, self._scope(head))
        if self._body.is_complete:
            self._exchange.feed(b"", True)
        task = self._loop.create_task(self._exchange.run(self._app))
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    def _scope(self, head: Head) -> Scope:
        raw_path, _, query = head.target.partition(b"?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": head.version,
            "server": self._server,
            "client": self._client,
            "scheme": self._scheme,
            "method": head.method,
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": query,
            "headers": head.headers,
        }

    def _pause_if(self, num_unread: int) -> None:
        if num_unread > MAX_UNREAD_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()

    def _refuse(self, error: MalformedError) -> None:
        logger.info("a connection is closed: what came is no request of HTTP/1.1: %s", error)
        if self._exchange is None or not self._exchange.is_started:
            self.write(_MALFORMED_HEAD + _MALFORMED)
        if self._exchange is not None:  # within a body
            self._exchange.leave()
        self.transport.close()

    def _set_timer(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if seconds is None else self._loop.call_later(seconds, self.transport.close)


Address = tuple[str, int | None] | None


def _place(address: Any) -> Address:
    """Of a socket, as ASGI has it. A unix socket has a path and no port; its clients have neither."""
    if isinstance(address, tuple):
        return str(address[0]), int(address[1])
    return (str(address), None) if address else None


def connections_of(max_connections: int) -> Callable[..., HttpConnection]:
    """What uvicorn calls for each connection."""

    def make(config: Any, server_state: Any, app_state: Any, _loop: Any = None) -> HttpConnection:
        return HttpConnection(config.loaded_app, server_state, config.timeout_keep_alive, max_connections)

    return make
