"""POST /pooling: the vector of each prompt, or a row for each of its tokens, for any task of the model."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.pooling.embedding import packed
from lullm.server.pooling.schema import RowsBody
from lullm.server.pooling.vectors import prepared_inputs
from lullm.server.sse import encode

_PIECE_ROWS = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(RowsBody, request)
        vectors = await prepared_inputs(self.context.of(body.model), request, body, "pool")
        written = _packed if body.encoding_format == "base64" else _numbers

        def element(index: int, data: Any) -> list[bytes]:
            return [encode({"object": "pooling", "index": index})[:-1], b',"data":', *written(data), b"}"]

        return await vectors.response(request, vectors.listed(element))


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
