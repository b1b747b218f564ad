"""Refusals: connections beyond the bound on their number. Each is told so, and read until its client has gone.

Bytes of a request that nobody reads reset their connection, and its client sees the reset in place of the answer.
"""

import asyncio
import json

from lullm.server.error import ApiError

LINGER_S = 1.0
"""Seconds for a client to send its request, to read the answer and to close."""
_FULL = ApiError(
    503,
    "the server has as many open connections as it takes (--max-connections); ask again later",
    code="too_many_connections",
)


class Refusals:
    """Answers connections without a look at their requests. On the event loop.

    Args:
        most_lingering: connections that may wait for their clients; further ones are closed at once.
    """

    def __init__(self, most_lingering: int) -> None:
        self._most_lingering = most_lingering
        body = json.dumps(_FULL.envelope()).encode()
        head = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 5\r\n"
        self._answer = head + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        self._lingering: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def refuse(self, transport: asyncio.Transport) -> None:
        """Answer, and close once the client has or its time is over. The caller reads and drops what comes."""
        transport.write(self._answer)
        if len(self._lingering) < self._most_lingering and transport.can_write_eof():
            transport.write_eof()
            self._lingering[transport] = asyncio.get_running_loop().call_later(LINGER_S, transport.close)
        else:  # TLS tells the end by closing
            transport.close()

    def forget(self, transport: asyncio.Transport) -> None:
        """The connection is closed. For any connection."""
        timer = self._lingering.pop(transport, None)
        if timer is not None:
            timer.cancel()
