"""POST /v1/embeddings."""

import base64
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.generation import public_id
from lullm.server.pooling.schema import EmbeddingBody
from lullm.server.pooling.vectors import MAX_NUMBERS, Vectors, fields_named
from lullm.server.sse import encode


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(EmbeddingBody, request)
        vectors = await prepared_embeddings(self.context.of(body.model), request, body, body.model)
        as_base64 = body.encoding_format == "base64"

        def element(index: int, data: Sequence[float]) -> list[bytes]:
            embedding = packed(data) if as_base64 else data
            return [encode({"object": "embedding", "index": index, "embedding": embedding})]

        return await vectors.response(request, vectors.listed(element))


async def prepared_embeddings(
    context: ServerContext, request: Request, body: EmbeddingBody, model: str | None
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
        return await Vectors.prepare(context, body, public_id("embd", request.headers), prompts, body.params(), model)


def packed(values: Sequence[float]) -> str:
    """float32, little-endian, OpenAI's form."""
    floats = array("f", values)
    if sys.byteorder == "big":
        floats.byteswap()
    return base64.b64encode(floats.tobytes()).decode()
