"""POST /classify: the probabilities of each text's labels, and the name of the likeliest."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response

from lullm.server.context import ServerContext
from lullm.server.pooling.schema import ClassifyBody
from lullm.server.pooling.vectors import prepared_inputs
from lullm.server.sse import encode


@dataclass(frozen=True, slots=True)
class Classes:
    """The handler."""

    context: ServerContext

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.context.read(ClassifyBody, request)
        context = self.context.of(body.model)
        vectors = await prepared_inputs(context, request, body, "classify")
        labels = context.engine.model_config.labels
        names = () if labels is None else labels.names

        def element(index: int, probs: Sequence[float]) -> list[bytes]:
            best = max(range(len(probs)), key=probs.__getitem__)
            label = names[best] if names else None
            return [encode({"index": index, "label": label, "probs": probs, "num_classes": len(probs)})]

        return await vectors.response(request, vectors.listed(element))
