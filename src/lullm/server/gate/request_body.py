"""RequestBody: bounds the bytes of a body that are read, and drops the rest when a request is refused."""

import asyncio
import contextlib

from starlette.datastructures import Headers
from starlette.types import Message, Receive

from lullm.server.error import ApiError
from lullm.units import MIB

DRAIN_BYTES = 64 * MIB
DRAIN_S = 5.0
BODY_S = 300.0  # for the whole body; a slower client would hold its request forever


class RequestBody:
    """`receive` of one request, bounded.

    A chunked body announces no length, so that what arrives is counted.
    """

    def __init__(self, receive: Receive, headers: Headers, max_bytes: int):
        self._receive = receive
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._is_complete = False
        self._deadline: float | None = None
        # This client sends its body only when it is asked to, so a refusal is enough.
        self._is_held_back = headers.get("expect", "").lower() == "100-continue"

    async def receive(self) -> Message:
        """The next message. Raises ApiError: 413, the body is longer than the bound; 408, slower than BODY_S."""
        if self._is_complete:  # the message is the client's end
            return await self._receive()
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().time() + BODY_S
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._next()
        except TimeoutError:
            self._is_complete = True
            headers = {"Connection": "close"}
            raise ApiError(
                408, f"the body did not arrive within {BODY_S:g} s", code="body_timeout", headers=headers
            ) from None
        if self._num_bytes > self._max_bytes:
            raise self.too_large()
        return message

    async def drain(self) -> None:
        """Read and drop the rest, at most DRAIN_BYTES in DRAIN_S seconds.

        A socket that is closed with unread bytes resets the connection, and the client loses the answer (413).
        """
        if self._is_held_back and self._num_bytes == 0:
            return
        limit = self._num_bytes + DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self._is_complete and self._num_bytes < limit:
                    await self._next()

    async def _next(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._num_bytes += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
        else:  # the client has gone
            self._is_complete = True
        return message

    def too_large(self) -> ApiError:
        """The refusal of a body that is longer than the bound."""
        return ApiError(413, f"the body is longer than {self._max_bytes} bytes", code="body_too_large")
