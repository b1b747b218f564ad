"""POST /classify: the probabilities of each text's labels, and the name of the likeliest."""

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.gate.request_log import begun
from lullm.server.openai.endpoint import JsonPieces
from lullm.server.openai.generation import public_id
from lullm.server.pooling.schema import ClassifyBody
from lullm.server.pooling.vectors import Vectors, check_size, fields_named
from lullm.server.sse import encode, until_disconnect


@dataclass(frozen=True, slots=True)
class Classes:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(ClassifyBody, request)
        context = self.context.of(body.model)
        with fields_named(prompt="input"):
            vectors = await Vectors.prepare(
                context, body, public_id("classify", request.headers), body.prompts(), body.params(), body.model
            )
        check_size(vectors)
        vectors.record = begun(request, vectors.id, vectors.usage)
        return JsonPieces(
            await until_disconnect(request.receive, _answer(vectors), self.context.options.request_timeout_s)
        )


async def _answer(vectors: Vectors) -> list[bytes]:
    """As pieces of JSON, one for each text."""
    labels = vectors.context.engine.model_config.labels
    names = () if labels is None else labels.names
    pieces = [encode(vectors.head())[:-1], b',"data":[']
    index = 0
    async for output in vectors.outputs():
        probs = output.outputs.data
        best = max(range(len(probs)), key=probs.__getitem__)
        item = {"index": index, "label": names[best] if names else None, "probs": probs, "num_classes": len(probs)}
        pieces += [encode(item), b","]
        index += 1
    tail = encode({"usage": vectors.usage()})
    return [*pieces[:-1], b"],", tail[1:]]
