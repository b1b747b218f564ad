"""The admin endpoints: sleep and its forecast, wake-up, pause, state. They exist with `enable_sleep_mode` only.

Arguments are query parameters (as vLLM's are) or a JSON body. `Gate` checks the callers. The engine feeds the metrics
itself, since it also sleeps and wakes without calls.
"""

import asyncio
import dataclasses
import re
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from lullm.engine.client import EngineClient
from lullm.errors import EngineAsleepError, WakeUpError
from lullm.server.admin_schema import EmptyBody, ExplainBody, PauseBody, RemoteCallBody, SleepBody, TagsBody
from lullm.server.application import routed
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.wire import WireModel, parse_body

Body = TypeVar("Body", bound=WireModel)
_DONE = {"status": "ok", "success": True}
"""vLLM's answer to a call that succeeded; a call that failed is an error here, never a 200."""
_INTEGER = re.compile(r"-?[0-9]{1,18}")


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    admin = Admin(context.engine)
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

    def __init__(self, engine: EngineClient):
        self._engine = engine
        self._waking = asyncio.Lock()  # of two calls at the same time only one reports that it woke the engine

    async def sleep(self, request: Request) -> JSONResponse:
        return await self._put_to_sleep(await _arguments(request, SleepBody))

    async def release_memory_occupation(self, request: Request) -> JSONResponse:
        """SGLang's name, and arguments."""
        return await self._put_to_sleep(SleepBody(tags=(await _arguments(request, TagsBody)).tags))

    async def _put_to_sleep(self, body: SleepBody) -> JSONResponse:
        try:
            report = await self._engine.sleep(**body.model_dump())
        except EngineAsleepError as error:  # mode 'wait' for kept requests, which cannot end
            raise _conflict(error, "mode") from None
        except (OSError, WakeUpError) as error:
            raise ApiError(500, f"{error}; the engine is {self._engine.sleep_state}", code="sleep_failed") from None
        return JSONResponse(_DONE | dataclasses.asdict(report) | self._state())

    async def explain_sleep(self, request: Request) -> JSONResponse:
        body = await _arguments(request, ExplainBody)
        try:
            forecast = await self._engine.explain_sleep(**body.model_dump())
        except OSError as error:
            raise ApiError(500, f"the speed of backups cannot be measured: {error}", code="explain_failed") from None
        return JSONResponse(dataclasses.asdict(forecast) | self._state())

    async def wake_up(self, request: Request) -> JSONResponse:
        tags = (await _arguments(request, TagsBody)).tags
        async with self._waking:
            was_sleeping = self._is_sleeping
            report = await self._engine.wake_up(tags)
        return JSONResponse(_DONE | {"was_sleeping": was_sleeping} | dataclasses.asdict(report) | self._state())

    async def is_sleeping(self) -> JSONResponse:
        return JSONResponse(self._state())

    async def pause(self, request: Request) -> JSONResponse:
        body = await _arguments(request, PauseBody)
        try:
            await self._engine.pause_generation(body.mode, body.clear_cache)
        except EngineAsleepError as error:
            raise _conflict(error, "mode") from None
        return JSONResponse({"status": "paused"} | self._state())

    async def resume(self, request: Request) -> JSONResponse:
        await _arguments(request, EmptyBody)
        try:
            await self._engine.resume_generation()
        except EngineAsleepError as error:
            raise _conflict(error) from None
        return JSONResponse({"status": "resumed"} | self._state())

    async def is_paused(self) -> JSONResponse:
        # A sleeping engine schedules nothing either.
        return JSONResponse({"is_paused": self._is_sleeping})

    async def reset_prefix_cache(self, request: Request) -> JSONResponse:
        await _arguments(request, EmptyBody)
        return JSONResponse({"status": "ok", "success": await self._engine.reset_prefix_cache()})

    async def collective_rpc(self, request: Request) -> JSONResponse:
        body = parse_body(RemoteCallBody, await request.body())
        if body.method not in self._engine.remote_methods:
            names = ", ".join(sorted(self._engine.remote_methods))
            raise ApiError(400, f"method must be one of {names}, not {body.method!r}", param="method")
        try:
            results = await self._engine.collective_rpc(body.method, body.timeout, body.args, body.kwargs)
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

    def _state(self) -> dict[str, Any]:
        state = self._engine.sleep_state
        return {
            "state": state,
            "is_sleeping": state != "awake",
            "sleeping_tags": list(self._engine.sleeping_tags),
        }

    @property
    def _is_sleeping(self) -> bool:
        return self._engine.sleep_state != "awake"


def _conflict(error: EngineAsleepError, param: str | None = None) -> ApiError:
    return ApiError(409, str(error), param=param, code="engine_asleep")


def _integer(name: str, text: str) -> int:
    # `int` accepts more than an integer of JSON: '1_0', ' 1', '+1', the digits of all scripts.
    if not _INTEGER.fullmatch(text):
        raise ApiError(400, f"{name} must be an integer, not {text!r}", param=name)
    return int(text)


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise ApiError(400, f"{name} must be true or false, not {text!r}", param=name)
    return text.lower() in ("true", "1")


_FROM_TEXT: dict[str, Callable[[str, str], Any]] = {
    "level": _integer,
    "keep_prefix_cache": _boolean,
    "clear_cache": _boolean,
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
