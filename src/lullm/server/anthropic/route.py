"""The routes of Anthropic's Messages API."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.server.anthropic.answer import MessageAnswer
from lullm.server.anthropic.body import CountBody, MessagesBody
from lullm.server.anthropic.error import envelope
from lullm.server.context import ServerContext
from lullm.server.openai.endpoint import Endpoint, fields_named
from lullm.server.openai.generation import Generation
from lullm.server.openai.reply import Reply


async def _message(generation: Generation, _body: MessagesBody) -> MessageAnswer:
    return MessageAnswer(Reply.of(generation))


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""

    async def count_tokens(request: Request) -> JSONResponse:
        body = await context.read(CountBody, request)
        context.check_model(body.model)
        with fields_named(body):
            [prompt] = body.translated(context.engine).prompts()
            token_ids = await context.engine.tokenize(prompt)
        return JSONResponse({"input_tokens": len(token_ids)})

    routes = APIRouter()
    context.envelopes["/v1/messages"] = envelope
    routes.add_api_route("/v1/messages", Endpoint(context, MessagesBody, _message, "msg"), methods=["POST"])
    routes.add_api_route("/v1/messages/count_tokens", count_tokens, methods=["POST"])
    return routes
