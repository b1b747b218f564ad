"""The routes of OpenAI's Responses."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.endpoint import Endpoint, TokenCount, reply_form
from lullm.server.openai.responses.answer import ResponseAnswer
from lullm.server.openai.responses.body import InputTokensBody, ResponsesBody


async def _forgotten(rest: str) -> JSONResponse:
    if rest == "compact":  # OpenAI has a call of this name, so it is not a response's id
        raise HTTPException(404)
    raise ApiError(
        404,
        "responses are not kept here: read them as they come, and send their items back as input",
        code="response_not_found",
    )


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    input_tokens = TokenCount(context, InputTokensBody, {"object": "response.input_tokens"})
    return routed(
        ("POST", "/v1/responses", Endpoint(context, ResponsesBody, reply_form(ResponseAnswer), "resp")),
        ("POST", "/v1/responses/input_tokens", input_tokens),
        ("GET POST DELETE", "/v1/responses/{rest:path}", _forgotten),
    )
