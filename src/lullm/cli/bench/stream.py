"""One streamed request to an OpenAI server, and its times; over asyncio's own streams, which cost little."""

import asyncio
import contextlib
import json
import ssl
import time
import urllib.parse
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from lullm.errors import ConfigError

LINE_BYTES = 1 << 24
"""A line of a stream may hold many log-probabilities; asyncio's own bound is 64 KiB."""
_MAX_ERROR_CHARS = 200


@dataclass(frozen=True, slots=True)
class Target:
    """The address for requests. `path`: of the endpoint, such as /v1/chat/completions."""

    host: str
    port: int
    path: str
    tls: ssl.SSLContext | None = None
    key: str | None = None

    @classmethod
    def of(cls, url: str, endpoint: str, key: str | None) -> "Target":
        """From a server's URL. Raises ConfigError."""
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urllib.parse.urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url: {url!r} is not a URL like http://127.0.0.1:8000")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise ConfigError("a key consists of printable ASCII characters")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        context = ssl.create_default_context() if is_tls else None
        return cls(parts.hostname, port or (443 if is_tls else 80), prefix + endpoint, context, key)

    def head(self, num_bytes: int) -> bytes:
        """The head of a request with a body of `num_bytes`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"POST {self.path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {num_bytes}",
            "Connection: close",
        ]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode()


@dataclass(slots=True)
class Sample:
    """The measurements of one request. Times in seconds of one clock.

    `piece_times`: of each event with new content; a server may put several tokens into one. `num_output`: the server's
    count, or the number of pieces. `error`: why it failed; then the rest is meaningless.
    """

    sent: float = 0.0
    ended: float = 0.0
    piece_times: list[float] = field(default_factory=list)
    num_prompt: int = 0
    num_output: int = 0
    error: str | None = None

    @property
    def first_s(self) -> float:
        """Time to first token."""
        return self.piece_times[0] - self.sent

    @property
    def e2e_s(self) -> float:
        """Time to the last token."""
        return self.piece_times[-1] - self.sent

    @property
    def per_token_s(self) -> float | None:
        """Mean time per output token after the first (TPOT); None: only one token."""
        if self.num_output < 2:
            return None
        return (self.piece_times[-1] - self.piece_times[0]) / (self.num_output - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between pieces (ITL)."""
        return [after - before for before, after in zip(self.piece_times, self.piece_times[1:], strict=False)]


async def ask(target: Target, body: dict[str, Any]) -> Sample:
    """Send a body with `stream` and read the answer to its end. Errors are in the sample."""
    data = json.dumps(body).encode()
    sample = Sample(sent=time.perf_counter())
    try:
        reader, writer = await asyncio.open_connection(target.host, target.port, ssl=target.tls, limit=LINE_BYTES)
        try:
            writer.write(target.head(len(data)) + data)
            await _read(reader, sample)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
    except (OSError, EOFError, ValueError) as error:
        sample.error = str(error) or type(error).__name__
    sample.ended = time.perf_counter()
    if sample.error is None and not sample.piece_times:
        sample.error = "the answer is empty"
    return sample


async def _read(reader: asyncio.StreamReader, sample: Sample) -> None:
    status = (await reader.readline()).split(b" ", 2)
    if len(status) < 2 or not status[0].startswith(b"HTTP/"):
        raise ValueError("the answer is not HTTP")
    is_chunked = False
    while line := (await reader.readline()).strip():
        name, _, value = line.partition(b":")
        is_chunked |= name.lower() == b"transfer-encoding" and b"chunked" in value.lower()
    parts = _chunks(reader) if is_chunked else _rest(reader)
    if status[1] != b"200":
        text = b"".join([part async for part in parts]).decode(errors="replace")
        raise ValueError(f"{status[1].decode()}: {text[:_MAX_ERROR_CHARS]}")
    is_done, open_line = False, b""
    async for part in parts:
        now = time.perf_counter()
        *lines, open_line = (open_line + part).split(b"\n")
        for line in lines:
            is_done |= _take(line, now, sample)
    if not is_done:
        raise ValueError("the stream broke off")
    sample.num_output = sample.num_output or len(sample.piece_times)


def _take(line: bytes, now: float, sample: Sample) -> bool:
    """Read one line of the stream; whether it is the end. Raises ValueError: it is an error, or no JSON."""
    if not line.startswith(b"data:"):
        return False
    data = line[5:].strip()
    if data == b"[DONE]":
        return True
    event = json.loads(data)
    if event.get("error"):
        raise ValueError(json.dumps(event["error"])[:_MAX_ERROR_CHARS])
    usage = event.get("usage")
    if usage:
        sample.num_prompt, sample.num_output = usage["prompt_tokens"], usage["completion_tokens"]
    for choice in event.get("choices", ()):
        delta = choice.get("delta", choice)
        if any(delta.get(name) for name in ("text", "content", "reasoning", "reasoning_content", "tool_calls")):
            sample.piece_times.append(now)
            break
    return False


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The parts of a chunked body (RFC 9112, 7.1)."""
    while num_bytes := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
        yield (await reader.readexactly(num_bytes + 2))[:-2]


async def _rest(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The parts of a body that ends with the connection."""
    while part := await reader.read(1 << 16):
        yield part
