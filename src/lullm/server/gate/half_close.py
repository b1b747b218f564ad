"""HalfClose: a client that sends no more may wait for its answer, as with `nc -N`; or it has closed its connection.

Both look the same, and only what is written afterwards tells them apart: a closed connection answers with a reset. So
something without a meaning is written: before an answer an interim response, which clients of HTTP/1.1 skip, within a
stream a comment.
"""

import asyncio
import select
from collections.abc import Callable
from typing import Any

CHECK_S = 0.05
"""Twice this passes before a client that has gone is noticed."""
PROD = "lullm.prod"
"""Key of a scope: an answer in pieces puts a call here that sends a piece without a meaning; None: there is none."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClose:
    """Watches one connection from the end of what its client sends, and aborts it once the client has gone.

    Args:
        prod: writes something without a meaning, if it can.
    """

    def __init__(self, transport: asyncio.Transport, prod: Callable[[], None]):
        self._transport = transport
        self._prod: Callable[[], None] | None = prod
        self._socket: Any = transport.get_extra_info("socket")
        self._timer = self._later()

    def stop(self) -> None:
        """The connection has ended."""
        self._timer.cancel()

    def _later(self) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(CHECK_S, self._check)

    def _check(self) -> None:
        if self._is_reset():
            self._transport.abort()
            return
        if self._prod is not None:
            self._prod()
            self._prod = None
        self._timer = self._later()

    def _is_reset(self) -> bool:
        # The loop no longer reads from the socket, so it does not hear of a reset.
        poll = select.poll()
        poll.register(self._socket.fileno(), 0)
        return bool(poll.poll(0))
