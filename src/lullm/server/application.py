"""Application: FastAPI's routes behind the gate, and a shorter way for frequent requests."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import Response
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

Handler = Callable[[Request], Awaitable[Response]]


class Application(FastAPI):
    """FastAPI with another middleware stack.

    Args:
        outside: the outermost layer: makes an app around the given one, outside of FastAPI's own middleware.
        handlers: of POST requests, by path. They are called without FastAPI's stack, its search through all routes and
            its dependencies, which cost 0.1 ms. FastAPI also has these routes, for other methods.
    """

    def __init__(self, outside: Callable[[ASGIApp], ASGIApp], handlers: Mapping[str, Handler], **arguments: Any):
        super().__init__(**arguments)
        self._outside = outside
        self._handlers = handlers
        self.add_exception_handler(Exception, _raise)  # the outermost layer answers unexpected errors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Not FastAPI's own, which checks for every request whether its telemetry is on; `Tracing` replaces it.
        await Starlette.__call__(self, scope, receive, send)

    def build_middleware_stack(self) -> ASGIApp:
        routes, handlers = super().build_middleware_stack(), self._handlers

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            handler = handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
            if handler is None:
                await routes(scope, receive, send)
                return
            response = await handler(Request(scope, receive, send))
            await response(scope, receive, send)

        return self._outside(answer)


def routed(*endpoints: tuple[str, str, Callable[..., Any]]) -> APIRouter:
    """Endpoints as (methods, path, handler). FastAPI passes a handler arguments by the names of its parameters."""
    routes = APIRouter()
    for methods, path, handler in endpoints:
        routes.add_api_route(path, handler, methods=methods.split())
    return routes


async def _raise(_request: Request, error: Exception) -> Response:
    raise error
