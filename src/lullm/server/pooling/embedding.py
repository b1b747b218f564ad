"""POST /v1/embeddings."""

import base64
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.gate.request_log import begun
from lullm.server.openai.endpoint import JsonPieces
from lullm.server.openai.generation import public_id
from lullm.server.pooling.schema import EmbeddingBody
from lullm.server.pooling.vectors import MAX_NUMBERS, Vectors, fields_named
from lullm.server.sse import encode, until_disconnect


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(EmbeddingBody, request)
        context = self.context.of(body.model)
        vectors = await prepared_embeddings(context, body, public_id("embd", request.headers), body.model)
        vectors.record = begun(request, vectors.id, vectors.usage)
        answer = _answer(vectors, body.encoding_format == "base64")
        return JsonPieces(await until_disconnect(request.receive, answer, self.context.options.request_timeout_s))


async def prepared_embeddings(
    context: ServerContext, body: EmbeddingBody, answer_id: str, model: str | None
) -> Vectors:
    """The engine's requests for a body, checked. `model`: the name that the client gave.

    Raises ApiError, InvalidRequestError: with the name of its field.
    """
    prompts = body.prompts()
    size = body.dimensions or context.engine.model_config.pooled_size
    if len(prompts) * size > MAX_NUMBERS:
        raise ApiError(
            400,
            f"{len(prompts)} embeddings of {size} elements are more than {MAX_NUMBERS} numbers; send fewer inputs "
            "at once, or ask for fewer dimensions",
            param="input",
            code="too_many_numbers",
        )
    with fields_named(prompt="input"):
        return await Vectors.prepare(context, body, answer_id, prompts, body.params(), model)


async def _answer(vectors: Vectors, as_base64: bool) -> list[bytes]:
    """As pieces of JSON: as Python's objects, an embedding takes twice the bytes of its JSON."""
    pieces = [encode(vectors.head())[:-1], b',"data":[']
    index = 0
    async for output in vectors.outputs():
        data = output.outputs.data
        item: dict[str, Any] = {
            "object": "embedding",
            "index": index,
            "embedding": packed(data) if as_base64 else data,
        }
        pieces += [encode(item), b","]
        index += 1
    tail = encode({"usage": vectors.usage()})
    return [*pieces[:-1], b"],", tail[1:]]


def packed(values: Sequence[float]) -> str:
    """float32, little-endian, OpenAI's form."""
    floats = array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
