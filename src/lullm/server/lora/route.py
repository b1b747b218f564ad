"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, which exist with --lora-updates only.

They read folders of this machine, so they need the admin's rights (`Gate`).
"""

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.wire import WireModel


class LoadBody(WireModel):
    """POST /v1/load_lora_adapter. `lora_path`: a folder of the server's machine, in PEFT's form."""

    lora_name: str
    lora_path: str


class UnloadBody(WireModel):
    """POST /v1/unload_lora_adapter."""

    lora_name: str
    lora_int_id: int | None = None


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""

    async def load_lora_adapter(request: Request) -> PlainTextResponse:
        body = await context.read(LoadBody, request)
        await context.adapters.load(body.lora_name, body.lora_path, context.own_names)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload_lora_adapter(request: Request) -> PlainTextResponse:
        body = await context.read(UnloadBody, request)
        await context.adapters.unload(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    return routed(
        ("POST", "/v1/load_lora_adapter", load_lora_adapter),
        ("POST", "/v1/unload_lora_adapter", unload_lora_adapter),
    )
