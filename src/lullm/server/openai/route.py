"""The routes for text in OpenAI's dialect."""

from fastapi import APIRouter

from lullm.server.context import ServerContext
from lullm.server.openai.answer import ChoicesAnswer
from lullm.server.openai.chat.form import ChatForm
from lullm.server.openai.completion import CompletionForm
from lullm.server.openai.endpoint import Endpoint
from lullm.server.openai.generation import Generation
from lullm.server.openai.schema import ChatBody, CompletionBody


async def _completion(generation: Generation, body: CompletionBody) -> ChoicesAnswer:
    form = await CompletionForm.open(generation.context.engine, body, generation.requests)
    return ChoicesAnswer(generation, form, body.wants_usage, body.wants_running_usage)


async def _chat(generation: Generation, body: ChatBody) -> ChoicesAnswer:
    form = await ChatForm.open(generation.context.engine, body, generation.requests)
    return ChoicesAnswer(generation, form, body.wants_usage, body.wants_running_usage)


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes = APIRouter()
    completions = Endpoint(context, CompletionBody, _completion, "cmpl")
    chat = Endpoint(context, ChatBody, _chat, "chatcmpl")
    routes.add_api_route("/v1/completions", completions, methods=["POST"])
    routes.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    return routes
