"""The routes of the page: its files, under a strict content policy, and its events."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter, Request
from fastapi.responses import Response

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.page.feed import Feed
from lullm.server.page.file import EVENTS_PATH, PageFile, page_files
from lullm.server.page.snapshot_stream import SnapshotStream

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        # Text of a model can never become markup: browsers that support this raise an error where text is parsed as
        # HTML.
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def router(context: ServerContext) -> APIRouter:
    """The page over `context`'s engine."""
    feeds: dict[ServerContext, Feed] = {}

    async def events(request: Request) -> Response:
        chosen = context.of_query(request)
        feed = feeds.setdefault(chosen, Feed(chosen))
        return SnapshotStream(feed.events(chosen.has_admin(request.scope)), chosen)

    return routed(*(("GET", file.path, _sender(file)) for file in page_files()), ("GET", EVENTS_PATH, events))


def _sender(file: PageFile) -> Callable[[], Awaitable[Response]]:
    async def send() -> Response:
        return Response(file.content, media_type=file.media_type, headers=HEADERS)

    return send
