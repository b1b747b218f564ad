"""The small endpoints: models, health, load, version, metrics, tokenize, detokenize, tokenizer info."""

import json
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST

import lullm
from lullm.config.resolved import ResolvedConfig
from lullm.engine.client import EngineClient
from lullm.fleet.member import FleetMember
from lullm.server.admin import boolean
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
        ("GET", "/server_info", small.server_info),
        ("GET", "/get_world_size", small.get_world_size),
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

    async def server_info(self, request: Request) -> JSONResponse:
        """What trainers read of vLLM's, under its names: TRL asks for adapters, replicas and log-probabilities."""
        form = request.query_params.get("config_format", "text")
        if form not in ("text", "json"):
            raise ApiError(400, f"config_format must be text or json, not {form!r}", param="config_format")
        engine = self._context.of_query(request).engine
        found = _vllm_config(engine.config, engine.num_replicas)
        told = found if form == "json" else json.dumps(found)
        return JSONResponse({"vllm_config": told, "version": lullm.__version__})

    async def get_world_size(self, request: Request) -> JSONResponse:
        """The number of workers: of all replicas, or with include_dp=false of one."""
        engine = self._context.of_query(request).engine
        with_replicas = boolean("include_dp", request.query_params.get("include_dp", "true"))
        return JSONResponse({"world_size": engine.config.num_workers * (engine.num_replicas if with_replicas else 1)})

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


def _vllm_config(config: ResolvedConfig, num_replicas: int) -> dict[str, Any]:
    """The options of an engine in the parts that vLLM has; a part that lullm lacks is null."""
    parts = {
        "model_config": ("model", "dtype", "max_model_len", "seed", "logprobs_mode", "max_logprobs", "enforce_eager"),
        "cache_config": ("block_size", "gpu_memory_utilization", "enable_prefix_caching", "swap_space"),
        "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "async_scheduling"),
        "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "enable_expert_parallel"),
        "lora_config": ("max_loras", "max_lora_rank", "max_cpu_loras"),
    }
    found: dict[str, Any] = {part: {name: getattr(config, name) for name in names} for part, names in parts.items()}
    found["model_config"] |= {"served_model_name": config.served_model_name, "quantization": config.quantization}
    found["parallel_config"] |= {"data_parallel_size": num_replicas, "world_size": config.num_workers}
    return found | ({} if config.enable_lora else {"lora_config": None}) | {"weight_transfer_config": None}


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
