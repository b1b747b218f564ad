"""POST /api/embed, and the older /api/embeddings."""

import time
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.ollama.model_card import of_name
from lullm.server.ollama.schema import kept_alive
from lullm.server.pooling.embedding import prepared_embeddings
from lullm.server.pooling.schema import EmbeddingBody, Texts
from lullm.server.pooling.vectors import Vectors
from lullm.server.sse import encode
from lullm.server.wire import WireModel, parse_body


class EmbedBody(WireModel):
    """POST /api/embed. `truncate`: a text that is too long is cut; otherwise it is refused."""

    model: str
    input: Texts
    truncate: bool = True
    dimensions: int | None = None
    keep_alive: float | str | None = None

    def fields(self) -> dict[str, Any]:
        """In OpenAI's form. These vectors have the length 1."""
        fields: dict[str, Any] = {"input": self.input, "dimensions": self.dimensions, "normalize": True}
        return fields | ({"truncate_prompt_tokens": -1} if self.truncate else {})


class OldEmbedBody(WireModel):
    """POST /api/embeddings: one text, whose vector is not normalized further."""

    model: str
    prompt: str
    keep_alive: float | str | None = None

    def fields(self) -> dict[str, Any]:
        """In OpenAI's form."""
        return {"input": self.prompt, "truncate_prompt_tokens": -1}


@dataclass(frozen=True, slots=True)
class Embeddings:
    """The handler of either."""

    context: ServerContext
    body_type: type[EmbedBody] | type[OldEmbedBody]

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError."""
        started = time.monotonic()
        body: EmbedBody | OldEmbedBody = await self.context.read(self.body_type, request)
        context = of_name(self.context, body.model)
        asked = parse_body(EmbeddingBody, body.fields() | kept_alive(body.keep_alive, context.engine))
        vectors = await prepared_embeddings(context, request, asked, body.model)
        return await vectors.response(request, _answer(vectors, body, started))


async def _answer(vectors: Vectors, body: EmbedBody | OldEmbedBody, started: float) -> list[bytes]:
    embeddings = await vectors.array(lambda _, data: [encode(data)])
    if isinstance(body, OldEmbedBody):
        return [b'{"embedding":', *embeddings[1:-1], b"}"]
    figures = {
        "total_duration": round(1e9 * (time.monotonic() - started)),
        "load_duration": 0,
        "prompt_eval_count": vectors.usage()["prompt_tokens"],
    }
    return [encode({"model": body.model})[:-1], b',"embeddings":', *embeddings, b",", encode(figures)[1:]]
