"""build_app: the FastAPI application over one engine, or over the models of a fleet."""

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware
from starlette.routing import Route
from starlette.types import ASGIApp

import lullm
from lullm.engine.client import EngineClient
from lullm.fleet.fleet import Fleet
from lullm.server import admin, route
from lullm.server.anthropic import route as anthropic
from lullm.server.application import Application
from lullm.server.audio import route as audio
from lullm.server.context import open_contexts
from lullm.server.error import install_error_handlers
from lullm.server.fleet import route as fleet
from lullm.server.gate.gate import Gate
from lullm.server.llama_cpp import route as llama_cpp
from lullm.server.lora import route as lora
from lullm.server.ollama import route as ollama
from lullm.server.openai import route as openai
from lullm.server.openai.endpoint import Endpoint
from lullm.server.openai.responses import route as responses
from lullm.server.options import ServerOptions
from lullm.server.page import route as page
from lullm.server.pooling import route as pooling
from lullm.server.reference import route as reference
from lullm.server.tracing import TraceParent


def build_app(served: EngineClient | Fleet, options: ServerOptions, admin_port: int | None = None) -> FastAPI:
    """The application over one engine, or several; `app.state.context` is its `ServerContext`. Starts nothing.

    Args:
        admin_port: the only port on which the sleep endpoints answer; None: any.
    """
    context = open_contexts(served, options, admin_port)
    parts = [openai, responses, anthropic, ollama, llama_cpp, pooling, audio, route]
    parts += [page] * options.page + [admin] * served.config.enable_sleep_mode + [lora] * options.lora_updates
    parts += [fleet] * (context.house.fleet is not None)
    routers = [part.router(context) for part in parts]

    def outside(app: ASGIApp) -> ASGIApp:
        app = Gate(app, context)
        if context.tracing.is_on:
            app = TraceParent(app)
        if not options.allowed_origins:
            return app
        # Outermost: a browser's preflight request carries no key.
        return CORSMiddleware(
            app,
            allow_origins=list(options.allowed_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["X-Request-Id", "X-Lullm-Ignored"],
        )

    routes = [route for each in routers for route in each.routes if isinstance(route, Route)]
    endpoints = {route.path: route.endpoint for route in routes if isinstance(route.endpoint, Endpoint)}
    # FastAPI's pages would load their scripts from the network, and know no bodies: those are parsed by hand.
    about = {"title": "lullm", "version": lullm.__version__, "openapi_url": None, "docs_url": None, "redoc_url": None}
    app = Application(outside, endpoints, **about)
    app.state.context = context
    install_error_handlers(app, context.error_response)
    for each in [*routers, reference.router(routers)]:
        app.include_router(each)
    return app
