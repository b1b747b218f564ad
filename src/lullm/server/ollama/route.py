"""The routes of Ollama."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

import lullm
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.ollama.answer import LINES, LinesAnswer
from lullm.server.ollama.embedding import EmbedBody, Embeddings, OldEmbedBody
from lullm.server.ollama.error import envelope
from lullm.server.ollama.model_card import ModelCard, of_name
from lullm.server.ollama.schema import GenerateBody, OllamaChatBody
from lullm.server.openai.endpoint import Endpoint, reply_form
from lullm.server.sse import encode
from lullm.server.wire import WireModel

API_VERSION = "0.12.11"
"""The release of Ollama with this API: clients ask for a version that is new enough."""
_NOT_HERE = ("/api/create", "/api/push", "/api/copy", "/api/blobs/{digest}")


class NamedBody(WireModel):
    """A request about a model, which older clients call `name`."""

    model: str | None = None
    name: str | None = None
    verbose: bool | None = None
    stream: bool = True
    insecure: bool | None = None


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    card = Cards(context)
    context.house.envelopes["/api/"] = envelope
    chat = Endpoint(context, OllamaChatBody, reply_form(LinesAnswer), "chat", of_name)
    generate = Endpoint(context, GenerateBody, reply_form(LinesAnswer), "gen", of_name)
    return routed(
        ("POST", "/api/chat", chat),
        ("POST", "/api/generate", generate),
        ("POST", "/api/embed", Embeddings(context, EmbedBody)),
        ("POST", "/api/embeddings", Embeddings(context, OldEmbedBody)),
        ("GET", "/api/tags", card.tags),
        ("GET", "/api/ps", card.ps),
        ("POST", "/api/show", card.show),
        ("GET", "/api/version", card.version),
        ("POST", "/api/pull", card.pull),
        ("DELETE", "/api/delete", card.refuse),
        *(("POST", path, card.refuse) for path in _NOT_HERE),
    )


class Cards:
    """The handlers of requests about models."""

    def __init__(self, context: ServerContext):
        self._context = context

    async def tags(self) -> JSONResponse:
        return JSONResponse({"models": [ModelCard(each).listed() for each in self._context.house.models]})

    async def ps(self) -> JSONResponse:
        running = [ModelCard(each).running() for each in self._context.house.models]
        return JSONResponse({"models": [each for each in running if each is not None]})

    async def show(self, request: Request) -> JSONResponse:
        _, context = await self._named(request)
        return JSONResponse(ModelCard(context).shown())

    async def version(self) -> JSONResponse:
        return JSONResponse({"version": API_VERSION, "lullm": lullm.__version__})

    async def pull(self, request: Request) -> Response:
        """The served model is here; others come with `lullm pull`."""
        body, _ = await self._named(request)
        done = {"status": "success"}
        return Response(encode(done) + b"\n", media_type=LINES) if body.stream else JSONResponse(done)

    async def refuse(self) -> JSONResponse:
        raise ApiError(
            400,
            "this server changes no models; fetch them with 'lullm pull', and name them when it starts",
            code="unsupported",
        )

    async def _named(self, request: Request) -> tuple[NamedBody, ServerContext]:
        """The body, and the context of its model."""
        body = await self._context.read(NamedBody, request)
        name = body.model or body.name
        if not name:
            raise ApiError(400, "model is required", param="model", code="missing_field")
        return body, of_name(self._context, name)
