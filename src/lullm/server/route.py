"""The small endpoints: models, health, load, version, metrics, tokenize, detokenize, tokenizer info."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import lullm
from lullm.server.anthropic import model_card
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.openai.chat.conversation import conversation
from lullm.server.openai.schema import DetokenizeBody, TokenizeBody, plain_prompt


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    small = SmallEndpoints(context)
    return routed(
        ("GET", "/v1/models", small.list_models),
        ("GET", "/v1/models/{name:path}", small.get_model),
        ("GET", "/health", small.health),
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
        self._engine = context.engine

    async def list_models(self, request: Request) -> JSONResponse:
        if model_card.is_asked_for(request.headers):
            return JSONResponse(model_card.page(self._context, self._context.model_names))
        return JSONResponse({"object": "list", "data": [self._model_card(n) for n in self._context.model_names]})

    async def get_model(self, request: Request, name: str) -> JSONResponse:
        self._context.check_model(name)
        if model_card.is_asked_for(request.headers):
            return JSONResponse(model_card.card(self._context, name))
        return JSONResponse(self._model_card(name))

    async def health(self) -> JSONResponse:
        self._context.check_serving()
        # A sleeping engine is healthy: it can be woken, and a supervisor must not replace it.
        return JSONResponse({"status": "ok", "is_sleeping": self._engine.sleep_state != "awake"})

    async def load(self) -> JSONResponse:
        """Requests in flight, under vLLM's name."""
        return JSONResponse({"server_load": self._context.num_active})

    async def version(self) -> JSONResponse:
        return JSONResponse({"version": lullm.__version__})

    async def metrics(self) -> Response:
        return Response(self._context.metrics.exposition(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def tokenize(self, request: Request) -> JSONResponse:
        body = await self._context.read(TokenizeBody, request)
        self._context.check_model(body.model)
        token_ids = await self._token_ids(body)
        answer: dict[str, Any] = {
            "count": len(token_ids),
            "max_model_len": self._engine.config.max_model_len,
            "tokens": token_ids,
        }
        if body.return_token_strs:
            answer["token_strs"] = [self._engine.tokenizer.decode_token(token_id) for token_id in token_ids]
        return JSONResponse(answer)

    async def _token_ids(self, body: TokenizeBody) -> list[int]:
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "send either prompt or messages", param="prompt")
        if body.messages is None:
            prompt = plain_prompt(body.prompt or "", body.split_special_tokens)
            return await self._engine.tokenize(prompt, body.add_special_tokens is not False)
        if body.add_special_tokens:
            raise ApiError(400, "the chat template writes the special tokens", param="add_special_tokens")
        return await self._engine.tokenize(
            conversation(body.messages, body.split_special_tokens, body.template_options())
        )

    async def detokenize(self, request: Request) -> JSONResponse:
        body = await self._context.read(DetokenizeBody, request)
        self._context.check_model(body.model)
        return JSONResponse({"prompt": await self._engine.detokenize(body.tokens)})

    async def tokenizer_info(self) -> JSONResponse:
        tokenizer = self._engine.tokenizer
        template = tokenizer.chat_template
        return JSONResponse(
            {
                "tokenizer_class": type(tokenizer).__name__,
                "vocab_size": tokenizer.vocab_size,
                "model_max_length": self._engine.config.max_model_len,
                **tokenizer.special_tokens,
                "chat_template": None if template is None else template.sources["default"],
            }
        )

    def _model_card(self, name: str) -> dict[str, Any]:
        lora = self._context.adapters.of(name)
        return {
            "id": name,
            "object": "model",
            "created": self._context.started_at,
            "owned_by": "lullm",
            "root": self._engine.config.model if lora is None else lora.lora_path,
            "parent": None if lora is None else self._context.model_name,
            "max_model_len": self._engine.config.max_model_len,
        }
