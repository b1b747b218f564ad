"""A raw HTTP client for hostile requests, and the check that an answer is well-formed."""

import asyncio
import json
import socket
import struct
from typing import Any

from .dialect import is_last, problem

ANSWER_S = 60.0
STATUSES = {200, 400, 401, 403, 404, 405, 408, 409, 413}
"""What any request may be answered with; and 503, while the engine sleeps."""


class Connection:
    """One connection for one request."""

    def __init__(self, address: tuple[str, int]):
        self._address = address

    async def __aenter__(self) -> "Connection":
        self.reader, self.writer = await asyncio.open_connection(*self._address, limit=1 << 24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Close with a reset instead of an orderly end."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.close()

    async def read_answer(self) -> bytes:
        """The answer until the server closes; what has come if the connection was reset."""
        found = b""
        async with asyncio.timeout(ANSWER_S):
            try:
                while part := await self.reader.read(1 << 16):
                    found += part
            except ConnectionResetError:
                pass
        return final_answer(found)


def request_bytes(
    method: str, path: str, body: bytes = b"", content_type: str = "application/json", chunked: bool = False
) -> bytes:
    """A whole request that asks for the connection to be closed."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\n"
    if not chunked:
        return head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body
    pieces = [body[place : place + 100] for place in range(0, len(body), 100)]
    encoded = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)
    return head.encode() + b"Transfer-Encoding: chunked\r\n\r\n" + encoded + b"0\r\n\r\n"


def final_answer(raw: bytes) -> bytes:
    """Without the interim answers (1xx, RFC 9110 15.2) before it, such as one for a client that has shut its half."""
    while raw.startswith(b"HTTP/1.1 1"):
        raw = raw.partition(b"\r\n\r\n")[2]
    return raw


def check_answer(raw: bytes) -> tuple[int, Any]:
    """Status and content of a whole answer: JSON, the events of a stream, or text. Raises AssertionError."""
    head, separator, body = raw.partition(b"\r\n\r\n")
    assert separator, f"no whole head: {raw[:200]!r}"
    lines = head.decode("latin-1").split("\r\n")
    assert lines[0].startswith("HTTP/1.1 "), lines[0]
    status = int(lines[0].split()[1])
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunked(body)
    elif "content-length" in headers:
        assert len(body) == int(headers["content-length"]), "a part of the answer is missing"
    kind = headers.get("content-type", "")
    if kind.startswith("text/event-stream"):
        return status, _events(body)
    if kind.startswith("application/x-ndjson"):
        lines = [json.loads(line) for line in body.decode().splitlines()]
        assert lines and (is_last(lines[-1]) or lines[-1].get("status") == "success"), lines[-1:]
        return status, lines
    content = json.loads(body) if kind.startswith("application/json") else body.decode()
    message = problem(content) if status >= 400 and kind.startswith("application/json") else ""
    assert status in STATUSES or (status == 503 and "sleep" in message), (status, content)
    return status, content


def _dechunked(body: bytes) -> bytes:
    found = b""
    while True:
        size, separator, body = body.partition(b"\r\n")
        assert separator, "a stream that breaks off"
        length = int(size, 16)
        if length == 0:
            return found
        found, body = found + body[:length], body[length + 2 :]


def _events(body: bytes) -> list[Any]:
    data = [line.removeprefix("data: ") for line in body.decode().split("\n") if line.startswith("data: ")]
    events = [json.loads(item) for item in data if item != "[DONE]"]
    assert data and (data[-1] == "[DONE]" or is_last(events[-1])), (
        "a stream ends with [DONE], an error, or its last event"
    )
    return events
