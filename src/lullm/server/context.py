"""ServerContext: what the routes know about one model; House: what all models of a server share, and its drain."""

import asyncio
import contextlib
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import Response
from starlette.requests import ClientDisconnect
from starlette.types import Scope

from lullm.engine.client import EngineClient
from lullm.errors import EngineAsleepError, EngineDeadError, LullmError
from lullm.fleet.fleet import Fleet
from lullm.log import get_logger
from lullm.server.error import (
    CLIENT_CLOSED_REQUEST,
    ApiError,
    ClientDisconnectedError,
    Envelope,
    shutting_down,
    to_api_error,
)
from lullm.server.fleet.metrics import FleetMetrics
from lullm.server.gate.queue_bound import QueueBound
from lullm.server.lora.served import Adapter, ServedAdapters
from lullm.server.metrics.registry import Metrics
from lullm.server.options import ServerOptions
from lullm.server.tracing import Tracing
from lullm.server.wire import Body, parse_body, parse_json
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest

logger = get_logger(__name__)

IGNORED = "lullm.ignored"
"""Key of an ASGI scope: the paths of unknown fields in a request's body."""

REFERRED_BYTES = "lullm.referred_bytes"
"""Key of an ASGI scope: the bytes of what a request's body refers to, which are read as if they stood in it."""

_MAX_LOGPROBS = 1 << 20  # 12 MiB in the engine and some 60 MiB of JSON
_MAX_TOLD = 256  # names of unknown fields; each is logged once
_MAX_NAME_CHARS = 64


_LONG_BYTES = 1 << 16
"""Bytes of a body that take 1 to 20 ms. 8 MiB of short parts of messages took the event loop 2.7 s."""

T = TypeVar("T")


async def off_loop(request: Request, call: Callable[[], T]) -> T:
    """The result of `call`, whose time grows with the body of `request`: on a thread if the body is long."""
    num_bytes = len(await request.body()) + request.scope.get(REFERRED_BYTES, 0)
    return await asyncio.to_thread(call) if num_bytes > _LONG_BYTES else call()


def port_of(scope: Scope) -> int | None:
    """The port that a request came in on; None: a unix socket, or this process."""
    _, port = scope.get("server") or (None, None)
    return port


class House:
    """State that the models of one server share: the count of requests in flight, and whether the server drains.

    Attributes:
        contexts: of its models, by all their names; the first is that of requests without a name.
        fleet: of several models; None: there is one engine.
        started_at: when the server started, as a Unix time.
        envelopes: the beginning of a path -> the form of its errors.
        draining: the server takes no new requests.
        num_active: requests in flight, of any kind but GET. idle: set while there is none.
        told: names of unknown fields that the log has.
    """

    def __init__(self, fleet: Fleet | None = None) -> None:
        self.fleet = fleet
        self.fleet_metrics = None if fleet is None else FleetMetrics(fleet)
        self.contexts: dict[str, ServerContext] = {}
        self.started_at = int(time.time())
        self.envelopes: dict[str, Envelope] = {}
        self.draining = False
        self.told: set[str] = set()
        self.num_active = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self._changing: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def models(self) -> "list[ServerContext]":
        """The context of each model."""
        return list(dict.fromkeys(self.contexts.values()))

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may have: those of the models, and of adapters."""
        return (*self.contexts, *(name for each in self.models for name in each.adapters.names))

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request, so that a drain waits for it."""
        self.num_active += 1
        self.idle.clear()
        try:
            yield
        finally:
            self.num_active -= 1
            if self.num_active == 0:
                self.idle.set()

    def owner(self, name: str) -> "ServerContext | None":
        """The context of the model that is called so, or of the adapter's; None: there is none."""
        return self.contexts.get(name) or next((each for each in self.models if name in each.adapters.names), None)

    async def load_adapter(self, name: str, path: str, model: str | None, kind: type[Adapter] = LoRARequest) -> None:
        """Load an adapter under a name. `model`: a name of what it is for; None: of the only one that takes adapters.

        Raises ApiError 400: the name is taken, the model is not clear, or it is no adapter for the model; 404: there is
        no such model.
        """
        async with self._alone(name):
            # `NAME:latest` is `NAME` for clients of Ollama.
            if self.owner(name) or self.owner(name.removesuffix(":latest")):
                text = f"there is a model {name!r} already; take another name, or unload that first"
                raise ApiError(400, text, param="lora_name")
            await self._base(model, kind).adapters.load(name, path, kind)

    async def unload_adapter(self, name: str, model: str | None) -> None:
        """Forget an adapter; requests that have it go on. `model`: a name of what it is for; None: any.

        Raises ApiError 404: there is no such adapter, or no such model.
        """
        async with self._alone(name):
            owners = self.models if model is None else [self._base(model)]
            owner = next((each for each in owners if name in each.adapters.names), None)
            if owner is None:
                known = ", ".join(repr(own) for each in owners for own in each.adapters.names) or "none"
                raise ApiError(404, f"there is no adapter {name!r}; there are: {known}", param="lora_name")
            await owner.adapters.unload(name)

    def _alone(self, name: str) -> asyncio.Lock:
        """Held while a name is loaded or unloaded. Others go on: reading a large adapter takes seconds."""
        return self._changing.setdefault(name, asyncio.Lock())

    def _base(self, model: str | None, kind: type[Adapter] = LoRARequest) -> "ServerContext":
        """The context of the model that an adapter is for. Raises ApiError as `load_adapter` does."""
        if model is not None:
            found = self.contexts.get(model)
            if found is None:
                names = " and ".join(map(repr, self.contexts))
                raise ApiError(404, f"there is no model {model!r} for it; there are {names}", param="model")
            return found
        option, enabling = "lora_modules", "enable_lora"
        if kind is PromptAdapterRequest:
            option, enabling = "prompt_adapters", "enable_prompt_adapter"
        able = [each for each in self.models if getattr(each.engine.config, enabling)]
        if len(able) > 1:
            names = ", ".join(each.model_name for each in able)
            text = f"say which model the adapter is for: send model (base_model_name in {option}), one of {names}"
            raise ApiError(400, text, param="model", code="model_needed")
        return (able or self.models)[0]


class ServerContext:
    """One model's engine, metrics and names, and what all models share. Lives on the event loop's thread.

    Args:
        admin_port: the only port on which the sleep endpoints answer; None: any.
        house: of the other models; None: there are none.
        aliases: more names of the model; None: as the options say.
    """

    def __init__(
        self,
        engine: EngineClient,
        options: ServerOptions,
        admin_port: int | None = None,
        house: House | None = None,
        aliases: Sequence[str] | None = None,
    ):
        self.engine = engine
        self.options = options
        self.admin_port = admin_port
        self.house = house or House()
        self.metrics = Metrics(engine, options.metrics_prefix)
        self.tracing = Tracing(options.otlp_traces_endpoint, engine.config.served_model_name)
        self.adapters = ServedAdapters(engine)
        self.queue = QueueBound(engine, options.max_queued_requests, options.max_queued_tokens)
        self.own_names = tuple(
            dict.fromkeys((self.model_name, *(options.model_aliases if aliases is None else aliases)))
        )
        self.house.contexts |= dict.fromkeys(self.own_names, self)

    @property
    def model_name(self) -> str:
        """The model's name in answers."""
        return self.engine.config.served_model_name

    @property
    def max_request_logprobs(self) -> int:
        """Most log-probabilities in one answer."""
        config, limit = self.engine.config, self.options.max_request_logprobs
        return limit or max(_MAX_LOGPROBS, (config.max_logprobs + 1) * config.max_model_len)

    async def read(
        self, kind: type[Body], request: Request, fields_of: Callable[[bytes], dict[str, Any]] = parse_json
    ) -> Body:
        """The body of `request`. Unknown fields are refused, or named in the log and the answer's header.

        Args:
            fields_of: the fields of the body's bytes; raises ApiError.

        Raises:
            ApiError: the body is not a valid one of `kind`.
        """
        ignored: list[str] | None = None if self.options.unknown_fields == "refuse" else []
        raw = await request.body()
        body = await off_loop(request, lambda: parse_body(kind, fields_of(raw), ignored))
        for path in ignored or ():
            name = quote(path, safe="[]._-")[:_MAX_NAME_CHARS]  # any field name fits in a header and a log line
            request.scope[IGNORED].append(name)
            if name not in self.house.told and len(self.house.told) < _MAX_TOLD:
                self.house.told.add(name)
                logger.warning("%s: the unknown field %s is ignored (told once)", request.url.path, name)
        return body

    def of(self, name: str | None, any_name: bool | None = None) -> "ServerContext":
        """The context of the model of that name, or of the adapter's; of this one without a name or with ''.

        `any_name`: of this one for other names, too; None: as the options say.

        Raises ApiError 404: there is none.
        """
        found = self.house.owner(name) if name else self
        if found is None and not (self.options.any_model_name if any_name is None else any_name):
            raise self._unknown(name)
        return found or self

    def _unknown(self, name: str | None) -> ApiError:
        known = " and ".join(map(repr, self.house.names))
        return ApiError(
            404,
            f"the model {name!r} does not exist here; this server serves {known}",
            param="model",
            code="model_not_found",
        )

    def to_change(self, name: str | None) -> "ServerContext":
        """As `of`, for what puts a model to sleep or wakes it: of several models, the name is always that of one.

        Raises ApiError 404: there is none.
        """
        is_alone = len(self.house.models) == 1
        if name == "" and not is_alone:
            raise self._unknown(name)
        return self.of(name, any_name=is_alone and self.options.any_model_name)

    def of_query(self, request: Request) -> "ServerContext":
        """The context of the model that `?model=` names. Raises ApiError as `of` does."""
        return self.of(request.query_params.get("model"))

    def check_serving(self) -> None:
        """Check that a request can be taken now. Raises ApiError 503 while draining or when the engine is dead."""
        if self.house.draining:
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

    def aborted(self, reason: int | str | None = None) -> ApiError | LullmError:
        """The error of a request that the engine has aborted. `reason`: set if the request itself caused it."""
        if reason is not None:  # the engine serves other requests
            return ApiError(500, f"the request was aborted: {reason}", code="request_failed")
        # A waiting request is aborted by the server's end, or by a sleep or pause of mode 'abort'.
        if self.engine.config.enable_sleep_mode and not self.house.draining:
            return EngineAsleepError("the request was aborted: the engine was put to sleep or paused")
        return EngineDeadError("the request was aborted")

    def api_error(self, error: Exception) -> ApiError:
        """The error for the client: a request that fails in a draining server gets a 503, not a 500."""
        if self.house.draining and isinstance(error, EngineDeadError):
            return shutting_down()
        return to_api_error(error)

    def error_response(self, error: Exception, path: str) -> Response:
        """The answer to a failed request, in the dialect of its path; nothing for a client that has gone."""
        if isinstance(error, ClientDisconnect | ClientDisconnectedError):
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        envelope = next((written for prefix, written in self.house.envelopes.items() if path.startswith(prefix)), None)
        return self.api_error(error).response(envelope)


def open_contexts(served: EngineClient | Fleet, options: ServerOptions, admin_port: int | None = None) -> ServerContext:
    """The contexts of all models; returns that of requests that name none."""
    if not isinstance(served, Fleet):
        return ServerContext(served, options, admin_port)
    house = House(served)
    members = served.members.values()
    return [ServerContext(each, options, admin_port, house, each.spec.aliases) for each in members][0]
