"""The admin endpoints: sleep, wake-up, pause, what sleeps and would. They exist with `enable_sleep_mode` only.

Arguments come as query parameters (as vLLM's do) or as a JSON body. Who may call is the business of `Gate`; metrics are
fed by the engine, which also sleeps and wakes without being called.
"""

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.errors import EngineAsleepError, WakeUpError
from lullm.server.admin_schema import EmptyBody, ExplainBody, PauseBody, RemoteCallBody, SleepBody, TagsBody
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.wire import WireModel, parse_body
from lullm.types.sleep import REMOTE_METHODS

Body = TypeVar("Body", bound=WireModel)


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes = APIRouter()
    engine = context.engine
    waking = asyncio.Lock()  # so that of two calls at the same time one says that it woke the engine, not both

    def state() -> dict[str, Any]:
        name = engine.sleep_state
        return {"state": name, "is_sleeping": name != "awake", "sleeping_tags": list(engine.sleeping_tags)}

    async def put_to_sleep(body: SleepBody) -> JSONResponse:
        try:
            report = await engine.sleep(**body.model_dump())
        except EngineAsleepError as error:  # mode 'wait' for requests that are kept: the state forbids it
            raise _conflict(error, "mode") from None
        except (OSError, WakeUpError) as error:
            raise ApiError(500, f"{error}; the engine is {engine.sleep_state}", code="sleep_failed") from None
        return JSONResponse(dataclasses.asdict(report) | state())

    async def wake(tags: list[str] | None) -> JSONResponse:
        async with waking:
            was_sleeping = engine.sleep_state != "awake"
            report = await engine.wake_up(tags)
        return JSONResponse({"was_sleeping": was_sleeping} | dataclasses.asdict(report) | state())

    @routes.post("/sleep")
    async def sleep(request: Request) -> JSONResponse:
        return await put_to_sleep(await _arguments(request, SleepBody))

    @routes.post("/release_memory_occupation")
    async def release_memory_occupation(request: Request) -> JSONResponse:
        return await put_to_sleep(SleepBody(tags=(await _arguments(request, TagsBody)).tags))

    @routes.get("/sleep/explain")
    async def explain_sleep(request: Request) -> JSONResponse:
        body = await _arguments(request, ExplainBody)
        try:
            forecast = await engine.explain_sleep(**body.model_dump())
        except OSError as error:
            raise ApiError(500, f"the speed of backups cannot be measured: {error}", code="explain_failed") from None
        return JSONResponse(dataclasses.asdict(forecast) | state())

    @routes.post("/wake_up")
    async def wake_up(request: Request) -> JSONResponse:
        return await wake((await _arguments(request, TagsBody)).tags)

    @routes.post("/resume_memory_occupation")
    async def resume_memory_occupation(request: Request) -> JSONResponse:
        return await wake((await _arguments(request, TagsBody)).tags)

    @routes.get("/is_sleeping")
    async def is_sleeping() -> JSONResponse:
        return JSONResponse(state())

    @routes.post("/pause")
    async def pause(request: Request) -> JSONResponse:
        body = await _arguments(request, PauseBody)
        try:
            await engine.pause_generation(body.mode, body.clear_cache)
        except EngineAsleepError as error:
            raise _conflict(error, "mode") from None
        return JSONResponse({"status": "paused"} | state())

    @routes.post("/resume")
    async def resume(request: Request) -> JSONResponse:
        await _arguments(request, EmptyBody)
        try:
            await engine.resume_generation()
        except EngineAsleepError as error:
            raise _conflict(error) from None
        return JSONResponse({"status": "resumed"} | state())

    @routes.get("/is_paused")
    async def is_paused() -> JSONResponse:
        return JSONResponse(
            {"is_paused": engine.sleep_state != "awake"}
        )  # an engine that sleeps schedules nothing, either

    @routes.post("/reset_prefix_cache")
    async def reset_prefix_cache(request: Request) -> JSONResponse:
        await _arguments(request, EmptyBody)
        await engine.reset_prefix_cache()
        return JSONResponse({})

    @routes.post("/collective_rpc")
    async def collective_rpc(request: Request) -> JSONResponse:
        body = parse_body(RemoteCallBody, await request.body())
        if body.method not in REMOTE_METHODS:
            names = ", ".join(sorted(REMOTE_METHODS))
            raise ApiError(400, f"method must be one of {names}, not {body.method!r}", param="method")
        try:
            results = await engine.collective_rpc(body.method, body.timeout, body.args, body.kwargs)
        except EngineAsleepError as error:
            raise _conflict(error, "method") from None
        except OSError as error:
            raise ApiError(500, f"{body.method}: {error}", code="remote_call_failed") from None
        except TypeError as error:
            raise ApiError(400, f"{body.method} does not take these arguments: {error}", param="args") from None
        return JSONResponse({"results": results})

    return routes


def _conflict(error: EngineAsleepError, param: str | None = None) -> ApiError:
    return ApiError(409, str(error), param=param, code="engine_asleep")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ApiError(400, f"{name} must be an integer, not {text!r}", param=name) from None


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name} must be true or false, not {text!r}", param=name)
    return text.lower() in ("true", "1")


_FROM_TEXT: dict[str, Callable[[str, str], Any]] = {
    "level": _integer,
    "keep_prefix_cache": _boolean,
    "clear_cache": _boolean,
}
"""How query parameters that are no strings are read."""


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
        if name == "tags":
            fields[name] = values
        elif len(values) > 1:
            raise ApiError(400, f"{name} is given {len(values)} times", param=name)
        else:
            fields[name] = _FROM_TEXT[name](name, values[0]) if name in _FROM_TEXT else values[0]
    return parse_body(kind, fields)
