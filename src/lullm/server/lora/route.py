"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, which exist with --lora-updates only.

They read folders of this machine, so they need the admin's rights (`Gate`).
"""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.wire import WireModel


class LoadBody(WireModel):
    """POST /v1/load_lora_adapter. `lora_path`: a folder of the server's machine, in PEFT's form.

    `model`: the one that it is for, if several take adapters.
    """

    lora_name: str
    lora_path: str
    model: str | None = None


class UnloadBody(WireModel):
    """POST /v1/unload_lora_adapter. `model`: whose it is; names differ, so it may be left out."""

    lora_name: str
    lora_int_id: int | None = None
    model: str | None = None


def router(context: ServerContext) -> APIRouter:
    """The endpoints over the engines of `context`'s house."""
    house = context.house

    async def load_lora_adapter(request: Request) -> PlainTextResponse:
        body = await context.read(LoadBody, request)
        await house.load_adapter(body.lora_name, body.lora_path, body.model)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_lora_adapter(request: Request) -> PlainTextResponse:
        body = await context.read(UnloadBody, request)
        await house.unload_adapter(body.lora_name, body.model)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routed(
        ("POST", "/v1/load_lora_adapter", load_lora_adapter),
        ("POST", "/v1/unload_lora_adapter", unload_lora_adapter),
    )
