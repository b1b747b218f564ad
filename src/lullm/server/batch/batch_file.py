"""Batch files in OpenAI's form: a line is a request, and a line of the output its answer, in the same order.

    {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
    {"id": ..., "custom_id": "1", "response": {"status_code": 200, "request_id": ..., "body": {...}}, "error": null}

A wrong line gets an error in its place, and the others are answered.
"""

import asyncio
import json
import uuid
from codecs import BOM_UTF8
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator
from typing import Any, Literal

from starlette.types import ASGIApp

from lullm.server.batch.local_call import local_call
from lullm.server.error import ApiError
from lullm.server.wire import WireModel, parse_body, parse_json

URLS = frozenset(
    {
        *("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/score", "/score"),
        *("/v1/rerank", "/v2/rerank", "/rerank", "/pooling", "/classify"),
    }
)
MAX_OPEN = 1024
"""Requests that the engine has at a time: enough to fill its batches, and a bound on memory."""


class BatchLine(WireModel):
    """One request."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


async def answers(app: ASGIApp, lines: Iterable[bytes]) -> AsyncGenerator[dict[str, Any], None]:
    """The answers to all lines that are not blank, in their order. They run together, `MAX_OPEN` at a time.

    A byte-order mark before the first line, as Windows writes it, is not read.
    """
    waiting: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        for line in _not_blank(lines):
            waiting.append(asyncio.create_task(_answer(app, line)))
            if len(waiting) >= MAX_OPEN:
                yield await waiting.popleft()
        while waiting:
            yield await waiting.popleft()
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def _not_blank(lines: Iterable[bytes]) -> Iterator[bytes]:
    for index, line in enumerate(lines):
        text = line if index else line.removeprefix(BOM_UTF8)
        if text.strip():
            yield text


async def _answer(app: ASGIApp, line: bytes) -> dict[str, Any]:
    answer: dict[str, Any] = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": None, "response": None, "error": None}
    try:
        given = parse_json(line)
        if isinstance(custom_id := given.get("custom_id"), str):  # it identifies the line, even if the rest is wrong
            answer["custom_id"] = custom_id
        request = parse_body(BatchLine, given)
        if request.url not in URLS:
            raise ApiError(400, f"url must be one of {', '.join(sorted(URLS))}, not {request.url!r}", param="url")
        if request.body.get("stream"):
            raise ApiError(400, "a batch has whole answers; leave stream out", param="stream")
    except ApiError as error:
        return answer | {"error": error.envelope()["error"]}
    found = await local_call(app, request.url, json.dumps(request.body).encode())
    body = json.loads(found.body)
    if found.status != 200:
        answer["error"] = body["error"]
    request_id = body.get("id") or uuid.uuid4().hex
    return answer | {"response": {"status_code": found.status, "request_id": request_id, "body": body}}
