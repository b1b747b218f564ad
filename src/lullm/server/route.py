"""The small endpoints: models, health, load, version, metrics, tokenize, detokenize, tokenizer info."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import lullm
from lullm.engine.client import EngineClient
from lullm.fleet.member import FleetMember
from lullm.server.anthropic import model_card
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.fleet.metrics import exposition
from lullm.server.fleet.model import status_fields
from lullm.server.llama_cpp.tokens import check_content, llama_tokens
from lullm.server.openai.chat.conversation import conversation
from lullm.server.openai.schema import DetokenizeBody, TokenizeBody, plain_prompt


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    small = SmallEndpoints(context)
    return routed(
        ("GET", "/v1/models", small.list_models),
        ("GET", "/v1/models/{name:path}", small.get_model),
        ("GET", "/health", small.health),
        ("GET", "/v1/health", small.health),  # llama.cpp's other name
        ("GET", "/ping", small.health),  # SageMaker's name
        ("POST", "/ping", small.health),
        ("GET", "/load", small.load),
        ("GET", "/version", small.version),
        ("GET", "/metrics", small.metrics),
        ("POST", "/tokenize", small.tokenize),
        ("POST", "/detokenize", small.detokenize),
        ("GET", "/tokenizer_info", small.tokenizer_info),
    )


class SmallEndpoints:
    """The handlers of the endpoints."""

    def __init__(self, context: ServerContext):
        self._context = context

    async def list_models(self, request: Request) -> JSONResponse:
        names = self._context.house.names
        if model_card.is_asked_for(request.headers):
            return JSONResponse(model_card.page(self._context, names))
        return JSONResponse({"object": "list", "data": [self._model_card(name) for name in names]})

    async def get_model(self, request: Request, name: str) -> JSONResponse:
        self._context.of(name)
        if model_card.is_asked_for(request.headers):
            return JSONResponse(model_card.card(self._context, name))
        return JSONResponse(self._model_card(name))

    async def health(self) -> JSONResponse:
        self._context.check_serving()
        # A sleeping engine is healthy: it can be woken, and a supervisor must not replace it.
        is_sleeping = all(each.engine.sleep_state != "awake" for each in self._context.house.models)
        return JSONResponse({"status": "ok", "is_sleeping": is_sleeping})

    async def load(self) -> JSONResponse:
        """Requests in flight, under vLLM's name."""
        return JSONResponse({"server_load": self._context.house.num_active})

    async def version(self) -> JSONResponse:
        return JSONResponse({"version": lullm.__version__})

    async def metrics(self) -> Response:
        house, prefix = self._context.house, self._context.options.metrics_prefix
        text = exposition([each.metrics for each in house.models], house.fleet_metrics, prefix)
        return Response(text, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def tokenize(self, request: Request) -> JSONResponse:
        body = await self._context.read(TokenizeBody, request)
        engine = self._context.of(body.model).engine
        if body.content is not None:
            return JSONResponse(await llama_tokens(engine, body))
        check_content(body)
        token_ids = await _token_ids(engine, body)
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": engine.config.max_model_len,
            "tokens": token_ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = [engine.tokenizer.decode_token(token_id) for token_id in token_ids]
        return JSONResponse(answer)

    async def detokenize(self, request: Request) -> JSONResponse:
        body = await self._context.read(DetokenizeBody, request)
        engine = self._context.of(body.model).engine
        text = await engine.detokenize(body.tokens)
        return JSONResponse({"prompt": text, "content": text})  # vLLM's name, and llama.cpp's

    async def tokenizer_info(self, request: Request) -> JSONResponse:
        engine = self._context.of_query(request).engine
        tokenizer = engine.tokenizer
        template = tokenizer.chat_template
        return JSONResponse(
            {
                "tokenizer_class": type(tokenizer).__name__,
                "vocab_size": tokenizer.vocab_size,
                "model_max_length": engine.config.max_model_len,
                **tokenizer.special_tokens,
                "chat_template": None if template is None else template.sources["default"],
            }
        )

    def _model_card(self, name: str) -> dict[str, Any]:
        context = self._context.of(name)
        engine, adapter = context.engine, context.adapters.of(name)
        status = status_fields(engine.status) if isinstance(engine, FleetMember) else {}
        return {
            "id": name,
            "object": "model",
            "created": self._context.house.started_at,
            "owned_by": "lullm",
            "root": engine.config.model if adapter is None else adapter.path,
            "parent": None if adapter is None else context.model_name,
            "max_model_len": engine.config.max_model_len,
        } | status


async def _token_ids(engine: EngineClient, body: TokenizeBody) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "send either prompt or messages, or llama.cpp's content", param="prompt")
    if body.messages is None:
        prompt = plain_prompt(body.prompt or "", body.split_special_tokens)
        return await engine.tokenize(prompt, body.add_special_tokens is not False)
    if body.add_special_tokens:
        raise ApiError(400, "the chat template writes the special tokens", param="add_special_tokens")
    options, settings = body.template_options(), body.mm_processor_kwargs
    asked = conversation(body.messages, body.split_special_tokens, options, mm_processor_kwargs=settings)
    return await engine.tokenize(asked)
