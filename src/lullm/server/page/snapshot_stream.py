"""SnapshotStream: sends the page's events as they come."""

import contextlib
from collections.abc import AsyncGenerator

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lullm.server.context import ServerContext
from lullm.server.error import ClientDisconnectedError
from lullm.server.gate.request_log import RECORD
from lullm.server.sse import EVENTS, event, until_disconnect


class SnapshotStream(Response):
    """A response that sends `snapshots` one after the other; a full connection delays the next one."""

    def __init__(self, snapshots: AsyncGenerator[bytes, None], context: ServerContext):
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, media_type=EVENTS)
        del self.headers["content-length"]
        self._snapshots = snapshots
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except ClientDisconnectedError:
            scope[RECORD].ending = "the client left"

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        last = b""
        async with contextlib.aclosing(self._snapshots):
            try:
                async for snapshot in self._snapshots:
                    await send({"type": "http.response.body", "body": snapshot, "more_body": True})
            except Exception as error:
                last = event(self._context.api_error(error).envelope())
        await send({"type": "http.response.body", "body": last, "more_body": False})
