"""The endpoints of a server with several models, as llama-swap and llama.cpp's router have them.

The lists are snapshots: they wake nothing, and idle time goes on.
"""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.fleet.fleet import Fleet
from lullm.fleet.member import FleetMember
from lullm.server.admin_schema import ModelBody
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.fleet.model import running_fields, status_fields
from lullm.server.wire import parse_body


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s fleet."""
    models = FleetEndpoints(context)
    return routed(
        ("GET", "/running", models.running),
        ("GET", "/models", models.models),
        ("POST", "/models/load", models.load),
        ("POST", "/models/unload", models.unload),
    )


class FleetEndpoints:
    """The handlers of the endpoints."""

    def __init__(self, context: ServerContext):
        self._context = context

    async def running(self) -> JSONResponse:
        """llama-swap's list of the models that are loaded, or will be soon."""
        found = []
        for member in self._fleet.members.values():
            step = member.next_sleep if member.status.state == "awake" else None
            found.append(running_fields(member.status, None if step is None else step[1]))
        return JSONResponse({"running": [each for each in found if each is not None]})

    async def models(self) -> JSONResponse:
        """llama.cpp's list: each model once, with its state."""
        return JSONResponse({"object": "list", "data": [self._card(each) for each in self._fleet.members.values()]})

    async def load(self, request: Request) -> JSONResponse:
        """Load a model, or wake it, in its turn. Answers once it is awake."""
        member = await self._member(request)
        report = await member.wake_up()
        return JSONResponse({"success": True, "seconds": report.seconds, **self._card(member)})

    async def unload(self, request: Request) -> JSONResponse:
        """Unload a model once its running requests have ended. Answers then. A request loads it again."""
        member = await self._member(request)
        was_loaded = await self._fleet.unload(member.name)
        return JSONResponse({"success": True, "was_loaded": was_loaded, **self._card(member)})

    @property
    def _fleet(self) -> Fleet:
        fleet = self._context.house.fleet
        assert fleet is not None, "these routes are a fleet's"
        return fleet

    async def _member(self, request: Request) -> FleetMember:
        body = parse_body(ModelBody, await request.body())
        return self._fleet.members[self._context.to_change(body.model).model_name]

    def _card(self, member: FleetMember) -> dict[str, Any]:
        return {
            "id": member.name,
            "aliases": list(member.spec.aliases),
            "adapters": list(self._context.house.contexts[member.name].adapters.names),
            "object": "model",
            "owned_by": "lullm",
            "created": self._context.house.started_at,
            "path": member.config.model,
            "max_model_len": member.config.max_model_len,
            **status_fields(member.status),
        }
