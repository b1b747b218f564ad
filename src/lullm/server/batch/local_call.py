"""local_call: one request to the application in this process, without a socket."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message


@dataclass(slots=True)
class LocalAnswer:
    """The application's answer."""

    status: int = 0
    body: bytes = b""


async def local_call(app: ASGIApp, path: str, body: bytes) -> LocalAnswer:
    """The answer to `POST path`. The application sees a local client that stays until it is answered."""
    answer, is_sent = LocalAnswer(), False

    async def receive() -> Message:
        nonlocal is_sent
        if is_sent:
            await asyncio.Event().wait()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
        else:
            answer.body += message.get("body", b"")

    headers = [(b"host", b"localhost"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
    }
    await app(scope, receive, send)
    return answer
