"""The routes for sounds, under OpenAI's names."""

from fastapi import APIRouter

from lullm.server.application import routed
from lullm.server.audio.transcription import transcriptions, translations
from lullm.server.context import ServerContext


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    return routed(
        ("POST", "/v1/audio/transcriptions", transcriptions(context)),
        ("POST", "/v1/audio/translations", translations(context)),
    )
