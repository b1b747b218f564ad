"""The routes of OpenAI's Responses."""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.endpoint import TokenCount
from lullm.server.openai.responses.body import InputTokensBody
from lullm.server.openai.responses.endpoint import ResponsesEndpoint
from lullm.server.openai.responses.store import ResponseStore


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    store = ResponseStore(context.options.response_store)

    async def retrieve(response_id: str, request: Request) -> Response:
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise ApiError(400, "a stored response comes whole: leave out stream", param="stream")
        return _json(store.get(response_id).response)

    async def delete(response_id: str) -> Response:
        store.delete(response_id)
        return JSONResponse({"id": response_id, "object": "response", "deleted": True})

    async def cancel(response_id: str) -> Response:
        return _json(store.cancel(response_id))

    input_tokens = TokenCount(context, InputTokensBody, {"object": "response.input_tokens"}, store.read)
    return routed(
        ("POST", "/v1/responses", ResponsesEndpoint.over(context, store)),
        ("POST", "/v1/responses/input_tokens", input_tokens),
        ("GET", "/v1/responses/{response_id}", retrieve),
        ("DELETE", "/v1/responses/{response_id}", delete),
        ("POST", "/v1/responses/{response_id}/cancel", cancel),
        ("POST", "/v1/responses/{rest:path}", _not_here),
    )


async def _not_here(rest: str) -> Response:
    raise HTTPException(404)  # such as /compact, which would be told to take another method, as a response's id


def _json(told: bytes) -> Response:
    return Response(told, media_type="application/json")
