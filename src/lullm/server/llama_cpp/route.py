"""The routes of llama.cpp's server, beside those that vLLM's has, too: /tokenize, /detokenize and /health."""

import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

import lullm
from lullm.config.generation import LLAMA_CPP, left_open
from lullm.engine.client import EngineClient
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.llama_cpp.answer import CompletionAnswer, settings
from lullm.server.llama_cpp.embedding import LlamaEmbeddings
from lullm.server.llama_cpp.error import envelope
from lullm.server.llama_cpp.schema import ApplyTemplateBody, GenerationFields, InfillBody, LlamaCompletionBody
from lullm.server.openai.chat.conversation import conversation
from lullm.server.openai.endpoint import Endpoint
from lullm.server.openai.generation import Generation
from lullm.types.request import CallerRequest


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""

    async def props(request: Request) -> JSONResponse:
        return JSONResponse(_props(context.of_query(request)))

    async def slots(request: Request) -> JSONResponse:
        found = _slots(context.of_query(request).engine)
        wants_free = request.query_params.get("fail_on_no_slot", "0").lower() not in ("0", "false")
        if wants_free and all(slot["is_processing"] for slot in found):
            raise ApiError(503, "no slot is free", code="no_free_slot", headers={"Retry-After": "1"})
        return JSONResponse(found)

    async def apply_template(request: Request) -> JSONResponse:
        body = await context.read(ApplyTemplateBody, request)
        engine = context.of(body.model).engine
        chat = conversation(body.messages, None, body.template_options(), mm_processor_kwargs=body.mm_processor_kwargs)
        asked = CallerRequest(f"template-{uuid.uuid4().hex}", chat, engine.default_params)
        prepared = await engine.prepare(asked)
        return JSONResponse({"prompt": prepared.prompt})

    for path in ("/completion", "/infill", "/embedding", "/embeddings", "/props", "/slots", "/apply-template"):
        context.house.envelopes[path] = envelope
    completion = Endpoint(context, LlamaCompletionBody, _answer, "cmpl")
    return routed(
        ("POST", "/completion", completion),
        ("POST", "/completions", completion),
        *(("POST", path, LlamaEmbeddings(context)) for path in ("/embedding", "/embeddings")),
        ("POST", "/infill", Endpoint(context, InfillBody, _answer, "infill")),
        ("GET", "/props", props),
        ("GET", "/slots", slots),
        ("POST", "/apply-template", apply_template),
    )


async def _answer(generation: Generation, body: GenerationFields) -> CompletionAnswer:
    return CompletionAnswer(generation, body)


def _slots(engine: EngineClient) -> list[dict[str, Any]]:
    """A slot for each sequence that may run; the first ones are busy with the requests that run now.

    Their own figures would have to be asked of the engine's thread, which may be in a step of many seconds.
    """
    num_busy, config = engine.stats().num_running, engine.config
    about = {"n_ctx": config.max_model_len, "speculative": config.speculative_config is not None}
    return [{"id": slot, "is_processing": slot < num_busy} | about for slot in range(config.max_num_seqs)]


def _props(context: ServerContext) -> dict[str, Any]:
    """The server's properties. `total_slots`: sequences that run at once, which share the memory of all."""
    engine = context.engine
    template = engine.tokenizer.chat_template
    defaults = engine.default_params.replace(max_tokens=None, **left_open(LLAMA_CPP, engine.stated_params))
    return {
        "default_generation_settings": {
            "n_ctx": engine.config.max_model_len,
            "params": settings(defaults),
        },
        "total_slots": engine.config.max_num_seqs,
        "model_alias": context.model_name,
        "model_path": engine.config.model,
        "chat_template": template.sources["default"] if template else "",
        "bos_token": engine.tokenizer.bos_token or "",
        "eos_token": engine.tokenizer.eos_token or "",
        "modalities": {
            "vision": engine.model_config.vision is not None,
            "audio": engine.model_config.hearing is not None,
        },
        "build_info": f"lullm {lullm.__version__}",
        "is_sleeping": engine.sleep_state != "awake",
    }
