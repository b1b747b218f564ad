"""The small endpoints: models, health, version, metrics, tokenize, detokenize."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import lullm
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.schema import DetokenizeBody, TokenizeBody, conversation
from lullm.server.wire import parse_body


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes = APIRouter()
    engine = context.engine

    def model_card() -> dict[str, Any]:
        return {
            "id": context.model_name,
            "object": "model",
            "created": context.started_at,
            "owned_by": "lullm",
            "root": engine.config.model,
            "parent": None,
            "max_model_len": engine.config.max_model_len,
        }

    @routes.get("/v1/models")
    async def list_models() -> JSONResponse:
        return JSONResponse({"object": "list", "data": [model_card()]})

    @routes.get("/v1/models/{name:path}")
    async def get_model(name: str) -> JSONResponse:
        context.check_model(name)
        return JSONResponse(model_card())

    @routes.get("/health")
    async def health() -> JSONResponse:
        context.check_serving()
        # An engine that sleeps is healthy: it can be woken, and must not be replaced for having been put to sleep.
        return JSONResponse({"status": "ok", "is_sleeping": engine.sleep_state != "awake"})

    @routes.get("/version")
    async def version() -> JSONResponse:
        return JSONResponse({"version": lullm.__version__})

    @routes.get("/metrics")
    async def metrics() -> Response:
        return Response(context.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @routes.post("/tokenize")
    async def tokenize_text(request: Request) -> JSONResponse:
        body = parse_body(TokenizeBody, await request.body())
        context.check_model(body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "send either prompt or messages", param="prompt")
        if body.messages is not None:
            if body.add_special_tokens:
                raise ApiError(400, "the chat template writes the special tokens", param="add_special_tokens")
            options = {"add_generation_prompt": body.add_generation_prompt}
            token_ids = await engine.tokenize(conversation(body.messages, **options))
        else:
            token_ids = await engine.tokenize(body.prompt or "", body.add_special_tokens is not False)
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": engine.config.max_model_len,
            "tokens": token_ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = [engine.tokenizer.decode_token(token_id) for token_id in token_ids]
        return JSONResponse(answer)

    @routes.post("/detokenize")
    async def detokenize_ids(request: Request) -> JSONResponse:
        body = parse_body(DetokenizeBody, await request.body())
        context.check_model(body.model)
        return JSONResponse({"prompt": await engine.detokenize(body.tokens)})

    return routes
