"""The admin endpoints: sleep and its forecast, wake-up, pause, state. They exist with `enable_sleep_mode` only.

Arguments are query parameters (as vLLM's are) or a JSON body. `Gate` checks the callers. The engine feeds the metrics
itself, since it also sleeps and wakes without calls.
"""

import asyncio
import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.engine.client import EngineClient
from lullm.errors import EngineAsleepError, SleepError
from lullm.log import get_logger
from lullm.server.admin_schema import AdminBody, EmptyBody, ExplainBody, PauseBody, RemoteCallBody, SleepBody, TagsBody
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.wire import parse_body

logger = get_logger(__name__)

Body = TypeVar("Body", bound=AdminBody)
_DONE = {"status": "ok", "success": True}
"""vLLM's answer to a call that succeeded; a call that failed is an error here, never a 200."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def router(context: ServerContext) -> APIRouter:
    """The endpoints over the engines of `context`'s house."""
    admin = Admin(context)
    return routed(
        ("POST", "/sleep", admin.sleep),
        ("GET", "/sleep/explain", admin.explain_sleep),
        ("POST", "/wake_up", admin.wake_up),
        ("GET", "/is_sleeping", admin.is_sleeping),
        ("POST", "/pause", admin.pause),
        ("POST", "/resume", admin.resume),
        ("GET", "/is_paused", admin.is_paused),
        ("POST", "/release_memory_occupation", admin.release_memory_occupation),
        ("POST", "/resume_memory_occupation", admin.wake_up),  # SGLang's name
        ("POST", "/reset_prefix_cache", admin.reset_prefix_cache),
        ("POST", "/collective_rpc", admin.collective_rpc),
    )


class Admin:
    """The handlers of the endpoints, named by their paths."""

    def __init__(self, context: ServerContext):
        self._context = context
        # Of two calls at the same time only one reports that it woke the engine.
        self._waking: defaultdict[EngineClient, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def sleep(self, request: Request) -> JSONResponse:
        return await self._put_to_sleep(await _arguments(request, SleepBody))

    async def release_memory_occupation(self, request: Request) -> JSONResponse:
        """SGLang's name, and arguments."""
        body = await _arguments(request, TagsBody)
        return await self._put_to_sleep(SleepBody(tags=body.tags, model=body.model))

    async def _put_to_sleep(self, body: SleepBody) -> JSONResponse:
        engine = self._engine(body.model)
        try:
            report = await engine.sleep(**body.model_dump(exclude={"model"}))
        except EngineAsleepError as error:  # mode 'wait' for kept requests, which cannot end
            raise _conflict(error, "mode") from None
        except SleepError as error:
            logger.error("the engine could not go to sleep: %s; it is %s", error, engine.sleep_state)
            raise ApiError(500, f"{error}; the engine is {engine.sleep_state}", code="sleep_failed") from None
        return JSONResponse(_DONE | dataclasses.asdict(report) | _state(engine))

    async def explain_sleep(self, request: Request) -> JSONResponse:
        body = await _arguments(request, ExplainBody)
        engine = self._engine(body.model)
        try:
            forecast = await engine.explain_sleep(**body.model_dump(exclude={"model"}))
        except SleepError as error:
            raise ApiError(500, f"{error}; the engine is {engine.sleep_state}", code="explain_failed") from None
        return JSONResponse(dataclasses.asdict(forecast) | _state(engine))

    async def wake_up(self, request: Request) -> JSONResponse:
        body = await _arguments(request, TagsBody)
        engine = self._engine(body.model)
        async with self._waking[engine]:
            was_sleeping = engine.sleep_state != "awake"
            report = await engine.wake_up(body.tags)
        return JSONResponse(_DONE | {"was_sleeping": was_sleeping} | dataclasses.asdict(report) | _state(engine))

    async def is_sleeping(self, request: Request) -> JSONResponse:
        return JSONResponse(_state(self._engine(request.query_params.get("model"))))

    async def pause(self, request: Request) -> JSONResponse:
        body = await _arguments(request, PauseBody)
        engine = self._engine(body.model)
        try:
            await engine.pause_generation(body.mode, body.clear_cache)
        except EngineAsleepError as error:
            raise _conflict(error, "mode") from None
        return JSONResponse({"status": "paused"} | _state(engine))

    async def resume(self, request: Request) -> JSONResponse:
        engine = self._engine((await _arguments(request, EmptyBody)).model)
        try:
            await engine.resume_generation()
        except EngineAsleepError as error:
            raise _conflict(error) from None
        return JSONResponse({"status": "resumed"} | _state(engine))

    async def is_paused(self, request: Request) -> JSONResponse:
        # A sleeping engine schedules nothing either.
        engine = self._engine(request.query_params.get("model"))
        return JSONResponse({"is_paused": engine.sleep_state != "awake"})

    async def reset_prefix_cache(self, request: Request) -> JSONResponse:
        engine = self._engine((await _arguments(request, EmptyBody)).model)
        return JSONResponse({"status": "ok", "success": await engine.reset_prefix_cache()})

    async def collective_rpc(self, request: Request) -> JSONResponse:
        body = parse_body(RemoteCallBody, await request.body())
        engine = self._engine(body.model)
        if body.method not in engine.remote_methods:
            names = ", ".join(sorted(engine.remote_methods))
            raise ApiError(400, f"method must be one of {names}, not {body.method!r}", param="method")
        try:
            results = await engine.collective_rpc(body.method, body.timeout, body.args, body.kwargs)
        except EngineAsleepError as error:
            raise _conflict(error, "method") from None
        except OSError as error:
            raise ApiError(500, f"{body.method}: {error}", code="remote_call_failed") from None
        except TypeError as error:
            raise ApiError(400, f"{body.method} does not take these arguments: {error}", param="args") from None
        try:
            return JSONResponse({"results": results})
        except (TypeError, ValueError) as error:
            text = f"{body.method} was called, and its results are no JSON: {error}"
            raise ApiError(500, text, code="remote_call_failed") from None

    def _engine(self, model: str | None) -> EngineClient:
        """The engine of that model. Raises ApiError: there is none, or several and none is named."""
        models = self._context.house.models
        if not model and len(models) > 1:
            names = ", ".join(each.model_name for each in models)
            raise ApiError(400, f"say which model: send model, one of {names}", param="model", code="model_needed")
        return self._context.to_change(model).engine


def _state(engine: EngineClient) -> dict[str, Any]:
    return {
        "state": engine.sleep_state,
        "is_sleeping": engine.sleep_state != "awake",
        "sleeping_tags": list(engine.sleeping_tags),
    }


def _conflict(error: EngineAsleepError, param: str | None = None) -> ApiError:
    return ApiError(409, str(error), param=param, code="engine_asleep")


def _integer(name: str, text: str) -> int:
    # `int` accepts more than an integer of JSON: '1_0', ' 1', '+1', the digits of all scripts.
    if not _INTEGER.fullmatch(text):
        raise ApiError(400, f"{name} must be an integer, not {text!r}", param=name)
    return int(text)


def boolean(name: str, text: str) -> bool:
    """The value of a query parameter. Raises ApiError 400: it is neither true nor false."""
    if text.lower() not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name} must be true or false, not {text!r}", param=name)
    return text.lower() in ("true", "1")


_FROM_TEXT: dict[str, Callable[[str, str], Any]] = {
    "level": _integer,
    "keep_prefix_cache": boolean,
    "clear_cache": boolean,
}
"""Query parameters that are not strings, and how each is read."""


async def _arguments(request: Request, kind: type[Body]) -> Body:
    """The call's arguments, from the query or the body.

    Raises:
        ApiError: 400: both are present, or an argument is unknown or of the wrong type.
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
