"""GET /openapi.json and GET /docs."""

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, JSONResponse

from lullm.server.application import routed
from lullm.server.reference.docs_page import docs_page
from lullm.server.reference.openapi import document

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def router(routers: Sequence[APIRouter]) -> APIRouter:
    """The endpoints, which describe the routes of `routers` and themselves."""

    def told() -> dict[str, Any]:
        return document([route for each in [*routers, routes] for route in each.routes])

    async def openapi() -> JSONResponse:
        return JSONResponse(told())

    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(told()), headers={"Content-Security-Policy": _POLICY})

    routes = routed(("GET", "/openapi.json", openapi), ("GET", "/docs", docs))
    return routes
