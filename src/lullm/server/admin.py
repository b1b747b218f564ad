"""The admin endpoints: sleep, wake-up, and what sleeps. They exist with `enable_sleep_mode` only.

Arguments come as query parameters (as vLLM's do) or as a JSON body. Who may call is the business of `Gate`.
"""

import asyncio
import time
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.errors import EngineAsleepError, WakeUpError
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.schema import SleepBody, WakeUpBody, WireModel, parse_body, parse_fields

Body = TypeVar("Body", bound=WireModel)


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes = APIRouter()
    engine, metrics = context.engine, context.metrics
    waking = asyncio.Lock()  # so that of two calls at the same time one says that it woke the engine, not both

    def state() -> dict[str, Any]:
        return {"is_sleeping": engine.is_sleeping, "sleeping_tags": list(engine.sleeping_tags)}

    @routes.post("/sleep")
    async def sleep(request: Request) -> JSONResponse:
        body = await _arguments(request, SleepBody)
        try:
            report = await engine.sleep(body.level, body.mode, body.tags)
        except EngineAsleepError as error:  # mode 'wait' for requests that are kept: the state forbids it
            raise ApiError(409, str(error), param="mode", code="engine_asleep") from None
        except OSError as error:
            metrics.sleep_failures.inc()
            raise ApiError(500, f"still awake: {error}", code="sleep_failed") from None
        metrics.observe_sleep(report)
        answer = {
            "level": report.level,
            "tags": list(report.tags),
            "freed_bytes": report.freed_bytes,
            "backed_up_bytes": report.backed_up_bytes,
            "seconds": report.seconds,
        }
        return JSONResponse(answer | state())

    @routes.post("/wake_up")
    async def wake_up(request: Request) -> JSONResponse:
        body = await _arguments(request, WakeUpBody)
        async with waking:
            was_sleeping, tags = engine.is_sleeping, engine.sleeping_tags
            started = time.perf_counter()
            try:
                await engine.wake_up(body.tags)
            except WakeUpError:
                metrics.wake_up_failures.inc()
                raise
            seconds = time.perf_counter() - started
            woken = [tag for tag in tags if tag not in engine.sleeping_tags]
        if woken or (was_sleeping and not engine.is_sleeping):
            metrics.wake_up_seconds.observe(seconds)
        return JSONResponse({"was_sleeping": was_sleeping, "tags": woken, "seconds": seconds} | state())

    @routes.get("/is_sleeping")
    async def is_sleeping() -> JSONResponse:
        return JSONResponse(state())

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache() -> JSONResponse:
        await engine.reset_prefix_cache()
        return JSONResponse({})

    return routes


async def _arguments(request: Request, kind: type[Body]) -> Body:
    """The call's arguments, from the query or the body.

    Raises:
        ApiError: 400, both are given, or an argument is unknown or of the wrong type.
    """
    raw = await request.body()
    if not request.query_params:
        return parse_body(kind, raw or b"{}")
    if raw.strip() not in (b"", b"{}"):
        raise ApiError(400, "send query parameters or a JSON body, not both")
    fields: dict[str, Any] = {}
    for name in request.query_params:
        values = request.query_params.getlist(name)
        if name != "tags" and len(values) > 1:
            raise ApiError(400, f"{name} is given {len(values)} times", param=name)
        fields[name] = values if name == "tags" else values[0]
    if "level" in fields:
        try:
            fields["level"] = int(fields["level"])
        except ValueError:
            raise ApiError(400, f"level must be an integer, not {fields['level']!r}", param="level") from None
    return parse_fields(kind, fields)
