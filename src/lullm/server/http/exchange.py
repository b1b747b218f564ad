"""Exchange: one request and its answer, as an ASGI application sees them."""

import asyncio
from http import HTTPStatus
from typing import Literal, Protocol

from starlette.types import ASGIApp, Message, Scope

from lullm.log import get_logger
from lullm.server.http.head import Head

logger = get_logger(__name__)

_STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
_WITHOUT_BODY = frozenset({204, 304})
_FAILED = b"Internal Server Error"


class Peer(Protocol):
    """The connection, as an exchange needs it."""

    @property
    def stays(self) -> bool:
        """Whether it may be kept for another request."""
        ...

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]: ...

    def write(self, data: bytes) -> None: ...

    @property
    def is_full(self) -> bool:
        """Whether the client reads more slowly than is written."""
        ...

    async def drained(self) -> None:
        """Return once the client reads, or has gone."""
        ...

    def read_on(self) -> None:
        """There is room for more of the body."""
        ...

    def end_exchange(self) -> None:
        """The answer is complete."""
        ...

    def close(self) -> None:
        """Close the connection behind what was written."""
        ...


class Exchange:
    """From a request's head to the end of its answer. The head of the answer leaves with the first bytes of its body.

    Attributes:
        is_started: the answer is begun. is_answered: it is complete.
    """

    def __init__(self, peer: Peer, head: Head, scope: Scope):
        self._peer = peer
        self._head = head
        self._scope = scope
        self._body = bytearray()
        self._body_is_told = False
        self._body_has_ended = False
        self._asks_first = head.asks_first
        self._waiter: asyncio.Future[None] | None = None
        self._is_gone = False
        self.is_started = False
        self._unsent_head = b""
        self._framing: Literal["none", "length", "chunks", "end"] = "end"
        self._missing = 0  # bytes that the answer's content-length still promises
        self.is_answered = False

    # -- for the connection --------------------------------------------------------------------------------------

    def feed(self, data: bytes, is_end: bool) -> int:
        """A part of the body, and whether it is the last; how many bytes nobody has read."""
        self._body += data
        self._body_has_ended = is_end
        self._wake()
        return len(self._body)

    def leave(self) -> None:
        """The client has gone."""
        self._is_gone = True
        self._wake()

    async def run(self, app: ASGIApp) -> None:
        """Have the application answer."""
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:
            logger.exception("the application failed")
        if self._is_gone or self.is_answered:
            return
        if not self.is_started:
            headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_FAILED))]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": _FAILED})
        else:
            self._peer.close()  # the client sees that the end is missing

    # -- for the application -------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """See ASGI: parts of the body, and then the client's end."""
        if self._asks_first and not self.is_started and not self._is_gone:
            self._asks_first = False
            self._peer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not (self._is_gone or self.is_answered):
            if self._body or (self._body_has_ended and not self._body_is_told):
                part = bytes(self._body)
                self._body.clear()
                self._body_is_told = self._body_has_ended
                self._peer.read_on()
                return {"type": "http.request", "body": part, "more_body": not self._body_has_ended}
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """See ASGI. Raises RuntimeError: the message is out of order, or a header or the length is wrong."""
        if self._peer.is_full:
            await self._peer.drained()
        if self._is_gone:
            return
        if message["type"] == "http.response.start" and not self.is_started:
            self._unsent_head = self._answer_head(message["status"], message.get("headers", ()))
            self.is_started = True
            return
        if message["type"] != "http.response.body" or not self.is_started or self.is_answered:
            raise RuntimeError(f"the message {message['type']!r} is out of order")
        is_last = not message.get("more_body", False)
        data = self._unsent_head + self._framed(message.get("body", b""), is_last)
        self._unsent_head = b""
        if data:
            self._peer.write(data)
        if is_last:
            self.is_answered = True
            self._wake()
            self._peer.end_exchange()

    def _answer_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        parts = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in (*self._peer.default_headers, *headers):
            if b"\n" in value or b"\r" in value or b"\n" in name:
                raise RuntimeError(f"a header of the answer has a line end in it: {name!r}")
            parts += (name, b": ", value, b"\r\n")
            if name.lower() == b"content-length":
                self._framing, self._missing = "length", int(value)
        if status in _WITHOUT_BODY or self._head.method == "HEAD":
            self._framing = "none"
        elif self._framing != "length" and self._head.version == "1.1":
            self._framing = "chunks"
            parts.append(b"transfer-encoding: chunked\r\n")
        if not self._peer.stays or self._framing == "end":
            parts.append(b"connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)

    def _framed(self, body: bytes, is_last: bool) -> bytes:
        if self._framing == "chunks":
            end = b"0\r\n\r\n" if is_last else b""
            return b"%x\r\n%b\r\n%b" % (len(body), body, end) if body else end
        if self._framing == "none":
            return b""
        if self._framing == "length":
            self._missing -= len(body)
            if self._missing < 0 or (is_last and self._missing):
                raise RuntimeError("the body of the answer is not as long as its head says")
        return body

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
