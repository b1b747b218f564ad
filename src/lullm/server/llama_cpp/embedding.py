"""POST /embedding and /embeddings: llama.cpp's list of vectors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import model_validator

from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.schema import Prompts, QueuedBody
from lullm.server.pooling.embedding import prepared_embeddings
from lullm.server.pooling.schema import EmbeddingBody
from lullm.server.sse import encode
from lullm.server.wire import parse_body

_NONE, _EUCLIDEAN = -1, 2
"""Values of `embd_normalize`."""


class LlamaEmbeddingBody(QueuedBody):
    """POST /embedding and /embeddings: `content`, or `input` in OpenAI's form.

    `embd_normalize`: 2 for vectors of length 1, -1 for vectors as they are.
    """

    missing: ClassVar = {"encoding_format": (None, "float")}

    content: Prompts | None = None
    input: Prompts | None = None
    embd_normalize: int = _EUCLIDEAN

    @model_validator(mode="after")
    def _check(self) -> "LlamaEmbeddingBody":
        if (self.content is None) == (self.input is None):
            raise ValueError("needs content, or input in its place")
        return self

    def fields(self) -> dict[str, Any]:
        """In OpenAI's form. Raises ApiError: another norm."""
        if self.embd_normalize not in (_NONE, _EUCLIDEAN):
            raise ApiError(
                400,
                f"embd_normalize is {_EUCLIDEAN} (Euclidean) or {_NONE} (none), not {self.embd_normalize}",
                param="embd_normalize",
                code="unsupported_field",
            )
        texts = self.input if self.content is None else self.content
        common = {"model": self.model, "priority": self.priority, "keep_alive": self.keep_alive}
        return {"input": texts, "normalize": self.embd_normalize == _EUCLIDEAN} | {
            name: value for name, value in common.items() if value is not None
        }


@dataclass(frozen=True, slots=True)
class LlamaEmbeddings:
    """The handler."""

    context: ServerContext
    body_type: type[LlamaEmbeddingBody] = LlamaEmbeddingBody

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of a field of /v1/embeddings."""
        body = await self.context.read(LlamaEmbeddingBody, request)
        context = self.context.of(body.model)
        asked = parse_body(EmbeddingBody, body.fields())
        vectors = await prepared_embeddings(context, request, asked, body.model)
        return await vectors.response(request, vectors.array(_element))


def _element(index: int, data: Sequence[float]) -> list[bytes]:
    """A text has one vector, and llama.cpp's clients expect a list of them."""
    return [encode({"index": index, "embedding": [data]})]
