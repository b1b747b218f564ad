"""The routes of OpenAI's Responses."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.endpoint import Endpoint, fields_named
from lullm.server.openai.generation import Generation
from lullm.server.openai.reply import Reply
from lullm.server.openai.responses.answer import ResponseAnswer
from lullm.server.openai.responses.body import InputTokensBody, ResponsesBody


async def _response(generation: Generation, body: ResponsesBody) -> ResponseAnswer:
    return ResponseAnswer(Reply.of(generation), body)


async def _forgotten() -> JSONResponse:
    raise ApiError(
        404,
        "responses are not kept here: read them as they come, and send their items back as input",
        code="response_not_found",
    )


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""

    async def input_tokens(request: Request) -> JSONResponse:
        body = await context.read(InputTokensBody, request)
        context.check_model(body.model)
        with fields_named(body):
            [prompt] = body.translated(context.engine).prompts()
            token_ids = await context.engine.tokenize(prompt)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": len(token_ids)})

    routes = APIRouter()
    routes.add_api_route("/v1/responses", Endpoint(context, ResponsesBody, _response, "resp"), methods=["POST"])
    routes.add_api_route("/v1/responses/input_tokens", input_tokens, methods=["POST"])
    routes.add_api_route("/v1/responses/{rest:path}", _forgotten, methods=["GET", "POST", "DELETE"])
    return routes
