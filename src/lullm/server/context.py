"""ServerContext: shared state of the routes, and the admission of requests while the server drains."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TypeVar
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from lullm.engine.client import EngineClient
from lullm.errors import EngineAsleepError, EngineDeadError, LullmError
from lullm.log import get_logger
from lullm.server.error import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    ClientDisconnectedError,
    Envelope,
    shutting_down,
    to_api_error,
)
from lullm.server.gate.queue_bound import QueueBound
from lullm.server.lora.served import ServedAdapters
from lullm.server.metrics.registry import Metrics
from lullm.server.options import ServerOptions
from lullm.server.tracing import Tracing
from lullm.server.wire import Body, parse_body

logger = get_logger(__name__)

IGNORED = "lullm.ignored"
"""Key of an ASGI scope: the paths of unknown fields in a request's body."""

_MAX_LOGPROBS = 1 << 20  # 12 MiB in the engine and some 60 MiB of JSON
_MAX_TOLD = 256  # names of unknown fields; each is logged once
_MAX_NAME_CHARS = 64


_LONG_BYTES = 1 << 16
"""Bytes of a body that take 1 to 20 ms. 8 MiB of short parts of messages took the event loop 2.7 s."""

T = TypeVar("T")


async def off_loop(request: Request, call: Callable[[], T]) -> T:
    """The result of `call`, whose time grows with the body of `request`: on a thread if the body is long."""
    return await asyncio.to_thread(call) if len(await request.body()) > _LONG_BYTES else call()


def port_of(scope: Scope) -> int | None:
    """The port that a request came in on; None: a unix socket, or this process."""
    _, port = scope.get("server") or (None, None)
    return port


class ServerContext:
    """The engine, the options, the metrics, and the count of requests in flight. Lives on the event loop's thread.

    `admin_port`: the only port on which the sleep endpoints answer; None: any.
    """

    def __init__(self, engine: EngineClient, options: ServerOptions, admin_port: int | None = None):
        self.engine = engine
        self.options = options
        self.admin_port = admin_port
        self.metrics = Metrics(engine, options.metrics_prefix)
        self.tracing = Tracing(options.otlp_traces_endpoint, engine.config.served_model_name)
        self.adapters = ServedAdapters(engine)
        self.queue = QueueBound(engine, options.max_queued_requests, options.max_queued_tokens)
        self.started_at = int(time.time())
        self.envelopes: dict[str, Envelope] = {}  # the beginning of a path -> the form of its errors
        self.draining = False
        self._told: set[str] = set()
        self._num_active = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.engine.config.served_model_name

    @property
    def own_names(self) -> tuple[str, ...]:
        """All names that the model has."""
        return tuple(dict.fromkeys((self.model_name, *self.options.model_aliases)))

    @property
    def model_names(self) -> tuple[str, ...]:
        """All names that requests may have: the model's, and its adapters'."""
        return self.own_names + self.adapters.names

    @property
    def max_request_logprobs(self) -> int:
        """Most log-probabilities in one answer."""
        config, limit = self.engine.config, self.options.max_request_logprobs
        return limit or max(_MAX_LOGPROBS, (config.max_logprobs + 1) * config.max_model_len)

    async def read(self, kind: type[Body], request: Request) -> Body:
        """The body of `request`. Unknown fields are refused, or named in the log and the answer's header.

        Raises:
            ApiError: the body is not a valid one of `kind`.
        """
        ignored: list[str] | None = None if self.options.unknown_fields == "refuse" else []
        raw = await request.body()
        body = await off_loop(request, lambda: parse_body(kind, raw, ignored))
        for path in ignored or ():
            name = quote(path, safe="[]._-")[:_MAX_NAME_CHARS]  # any field name fits in a header and a log line
            request.scope[IGNORED].append(name)
            if name not in self._told and len(self._told) < _MAX_TOLD:
                self._told.add(name)
                logger.warning("%s: the unknown field %s is ignored (told once)", request.url.path, name)
        return body

    def check_model(self, name: str | None) -> None:
        """Check that `name` is a name of the model or of an adapter, or left out. Raises ApiError 404 otherwise."""
        if name is not None and name not in self.model_names and not self.options.any_model_name:
            raise ApiError(
                404,
                f"the model {name!r} does not exist here; this server serves "
                f"{' and '.join(map(repr, self.model_names))}",
                param="model",
                code="model_not_found",
            )

    def check_serving(self) -> None:
        """Check that a request can be taken now. Raises ApiError 503 while draining or when the engine is dead."""
        if self.draining:
            raise shutting_down()
        try:
            self.engine.check_running()
        except EngineDeadError as error:
            raise ApiError(503, f"the engine is dead: {error}", code="engine_dead") from None

    def has_admin(self, scope: Scope) -> bool:
        """Whether the sleep endpoints answer where a request came in."""
        return self.engine.config.enable_sleep_mode and self.is_admin_port(scope)

    def is_admin_port(self, scope: Scope) -> bool:
        """Whether admin endpoints answer where a request came in."""
        return self.admin_port in (None, port_of(scope))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request, so that a drain waits for it."""
        self._num_active += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._num_active -= 1
            if self._num_active == 0:
                self._idle.set()

    @property
    def is_idle(self) -> bool:
        """Whether no request is in flight."""
        return self._num_active == 0

    @property
    def num_active(self) -> int:
        """Requests in flight, of any kind but GET."""
        return self._num_active

    async def wait_idle(self) -> None:
        """Return once no request is in flight."""
        await self._idle.wait()

    def aborted(self, reason: int | str | None = None) -> ApiError | LullmError:
        """The error of a request that the engine has aborted. `reason`: set if the request itself caused it."""
        if reason is not None:  # the engine serves other requests
            return ApiError(500, f"the request was aborted: {reason}", code="request_failed")
        # A waiting request is aborted by the server's end, or by a sleep or pause of mode 'abort'.
        if self.engine.config.enable_sleep_mode and not self.draining:
            return EngineAsleepError("the request was aborted: the engine was put to sleep or paused")
        return EngineDeadError("the request was aborted")

    def api_error(self, error: Exception) -> ApiError:
        """The error for the client: a request that fails in a draining server gets a 503, not a 500."""
        if self.draining and isinstance(error, EngineDeadError):
            return shutting_down()
        return to_api_error(error)

    def error_response(self, error: Exception, path: str) -> Response:
        """The answer to a failed request, in the dialect of its path; nothing for a client that has gone."""
        if isinstance(error, ClientDisconnect | ClientDisconnectedError):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        envelope = next((written for prefix, written in self.envelopes.items() if path.startswith(prefix)), None)
        return self.api_error(error).response(envelope)
