"""The routes for text in OpenAI's dialect."""

from fastapi import APIRouter

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.openai.answer import ChoiceForm, ChoicesAnswer
from lullm.server.openai.chat.form import ChatForm
from lullm.server.openai.completion import CompletionForm
from lullm.server.openai.endpoint import Endpoint
from lullm.server.openai.generation import Generation
from lullm.server.openai.schema import ChatBody, CompletionBody, GenerationBody


def _choices(generation: Generation, form: ChoiceForm, body: GenerationBody) -> ChoicesAnswer:
    with_usage = body.wants_usage or generation.context.options.enable_force_include_usage
    return ChoicesAnswer(generation, form, with_usage, body.wants_running_usage)


async def _completion(generation: Generation, body: CompletionBody) -> ChoicesAnswer:
    form = await CompletionForm.open(generation.context.engine, body, generation.requests)
    return _choices(generation, form, body)


async def _chat(generation: Generation, body: ChatBody) -> ChoicesAnswer:
    form = await ChatForm.open(generation.context.engine, body, generation.requests)
    return _choices(generation, form, body)


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    return routed(
        ("POST", "/v1/completions", Endpoint(context, CompletionBody, _completion, "cmpl")),
        ("POST", "/v1/chat/completions", Endpoint(context, ChatBody, _chat, "chatcmpl")),
    )
