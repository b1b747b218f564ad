"""POST /pooling: the vector of each prompt, or a row for each of its tokens, for any task of the model."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.gate.request_log import begun
from lullm.server.openai.endpoint import JsonPieces
from lullm.server.openai.generation import public_id
from lullm.server.pooling.embedding import packed
from lullm.server.pooling.schema import RowsBody
from lullm.server.pooling.vectors import Vectors, check_size, fields_named
from lullm.server.sse import encode, until_disconnect

_PIECE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(RowsBody, request)
        context = self.context.of(body.model)
        with fields_named(prompt="input"):
            vectors = await Vectors.prepare(
                context, body, public_id("pool", request.headers), body.prompts(), body.params(), body.model
            )
        check_size(vectors)
        vectors.record = begun(request, vectors.id, vectors.usage)
        answer = _answer(vectors, body.encoding_format == "base64")
        return JsonPieces(await until_disconnect(request.receive, answer, self.context.options.request_timeout_s))


async def _answer(vectors: Vectors, as_base64: bool) -> list[bytes]:
    """As pieces of JSON: as Python's objects, a row takes several times the bytes of its JSON."""
    pieces = [encode(vectors.head())[:-1], b',"data":[']
    index = 0
    async for output in vectors.outputs():
        data = output.outputs.data
        pieces.append(encode({"object": "pooling", "index": index})[:-1])
        pieces += [b',"data":', *(_packed(data) if as_base64 else _numbers(data)), b"},"]
        index += 1
    tail = encode({"usage": vectors.usage()})
    return [*pieces[:-1], b"}],", tail[1:]]


def _packed(data: Any) -> Iterator[bytes]:
    """float32, little-endian, row after row, and the shape."""
    if isinstance(data, list):
        yield encode(packed(data))
        return
    yield encode(base64.b64encode(data.astype("<f4", copy=False).tobytes()).decode())
    yield b',"shape":' + encode(list(data.shape))


def _numbers(data: Any) -> Iterator[bytes]:
    if isinstance(data, list):
        yield encode(data)
        return
    if not len(data):
        yield b"[]"
    for first in range(0, len(data), _PIECE_ROWS):
        part = encode(data[first : first + _PIECE_ROWS].tolist())
        yield (b"[" if not first else b",") + part[1:-1] + (b"]" if first + _PIECE_ROWS >= len(data) else b"")
