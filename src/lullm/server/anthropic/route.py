"""The routes of Anthropic's Messages API."""

from fastapi import APIRouter

from lullm.server.anthropic.answer import MessageAnswer
from lullm.server.anthropic.body import CountBody, MessagesBody
from lullm.server.anthropic.error import envelope
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.openai.endpoint import Endpoint, TokenCount, reply_form


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    context.house.envelopes["/v1/messages"] = envelope
    return routed(
        ("POST", "/v1/messages", Endpoint(context, MessagesBody, reply_form(MessageAnswer), "msg")),
        ("POST", "/v1/messages/count_tokens", TokenCount(context, CountBody)),
    )
