"""Gate: the ASGI middleware every request passes: keys, web pages, draining, body length, request id, counting."""

import hmac
import re
import uuid
from collections.abc import Iterator

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lullm.server.context import IGNORED, ServerContext, port_of
from lullm.server.error import ApiError
from lullm.server.gate.request_body import RequestBody
from lullm.server.gate.request_log import RECORD, RequestRecord
from lullm.server.gate.web_policy import WebPolicy
from lullm.server.page.file import PAGE_PATHS

OPEN_PATHS = PAGE_PATHS | {
    "/health",
    "/v1/health",
    "/ping",
}  # load balancers, and a browser that opens the page, send no key
LORA_PATHS = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
SLEEP_PATHS = frozenset(
    {
        *("/sleep", "/sleep/explain", "/wake_up", "/is_sleeping", "/pause", "/resume", "/is_paused"),
        *("/release_memory_occupation", "/resume_memory_occupation", "/reset_prefix_cache", "/collective_rpc"),
    }
)
FLEET_PATHS = frozenset({"/models/load", "/models/unload"})
"""The paths that a server with several models has besides."""
ADMIN_PATHS = SLEEP_PATHS | FLEET_PATHS | LORA_PATHS
"""The endpoints that need the admin key. Without one they are as open as the others, but to local programs only:
`Listener.check_exposure` keeps out the network, `WebPolicy` keeps out web pages in a local browser.
"""
MAX_IGNORED = 16  # names in a header
REQUEST_ID = r"[A-Za-z0-9._:\-]{1,128}"
"""Request ids that are safe in a header and a log line."""
_REQUEST_ID = re.compile(REQUEST_ID)


def request_id(headers: Headers) -> str | None:
    """The client's `X-Request-Id`, if it is safe in a header and a log line."""
    value = headers.get("x-request-id")
    return value if value is not None and _REQUEST_ID.fullmatch(value) else None


class Gate:
    """Refuses requests before they reach a route, and bounds the bodies that routes read.

    GET requests pass while the server drains (a scraper wants the last numbers), and a drain does not wait for them.
    """

    def __init__(self, app: ASGIApp, context: ServerContext):
        self._app = app
        self._context = context
        options = context.options
        self._keys = [key.encode() for key in options.api_keys]
        self._admin_keys = [key.encode() for key in options.admin_keys]
        self._web = WebPolicy(options.host, options.allowed_hosts, options.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id, scope = self._identified(scope, headers)
        body = RequestBody(receive, headers, self._context.options.max_body_bytes)
        ignored: list[str] = []
        scope[IGNORED] = ignored
        scope[RECORD] = record = RequestRecord()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                if message["status"] >= 400:
                    await body.drain()
                if client_id is not None:
                    MutableHeaders(scope=message)["X-Request-Id"] = client_id
                if ignored:
                    names = ignored[:MAX_IGNORED] + ["..."] * (len(ignored) > MAX_IGNORED)
                    MutableHeaders(scope=message)["X-Lullm-Ignored"] = ", ".join(names)
            await send(message)

        try:
            self._check(scope, headers, body)
            if scope["method"] in ("GET", "HEAD"):
                # The routes know GET alone. uvicorn keeps its own scope, and sends no body to a HEAD request.
                await self._app({**scope, "method": "GET"}, body.receive, send_with_headers)
            else:
                with self._context.house.counted():
                    await self._app(scope, body.receive, send_with_headers)
        except Exception as error:  # refused here, or an unexpected failure of a route
            if record.status is not None:
                record.ending = "failed behind its beginning"
                raise
            await self._context.error_response(error, scope["path"])(scope, receive, send_with_headers)
        finally:
            record.log(scope)

    def _identified(self, scope: Scope, headers: Headers) -> tuple[str | None, Scope]:
        """The id for the answer's header, and the scope, which has it in its own."""
        client_id = request_id(headers)
        if client_id is None and self._context.options.enable_request_id_headers:
            client_id = uuid.uuid4().hex
            others = [(name, value) for name, value in scope["headers"] if name != b"x-request-id"]
            scope = {**scope, "headers": [*others, (b"x-request-id", client_id.encode())]}
        return client_id, scope

    def _check(self, scope: Scope, headers: Headers, body: RequestBody) -> None:
        """Check that the request may reach a route. Raises ApiError otherwise."""
        is_admin = scope["path"] in ADMIN_PATHS
        needs_sleep = scope["path"] in SLEEP_PATHS | FLEET_PATHS
        if needs_sleep and not self._context.engine.config.enable_sleep_mode:
            raise ApiError(404, "the sleep endpoints are there with --enable-sleep-mode only", code="sleep_mode_off")
        if scope["path"] in LORA_PATHS and not self._context.options.lora_updates:
            raise ApiError(404, "adapters are loaded and unloaded with --lora-updates only", code="lora_updates_off")
        if is_admin and not self._context.is_admin_port(scope):
            raise ApiError(404, "the admin endpoints answer on --admin-port only", code="admin_port_only")
        if is_admin and self._admin_keys:
            _check_key(self._admin_keys, headers, "admin key")
        elif not self._keys:
            self._web.check(headers, has_name=port_of(scope) is not None)
        elif scope["path"] not in OPEN_PATHS:
            # The key distinguishes a client from a foreign page, under any name of the server in the network.
            _check_key(self._keys, headers, "API key")
            if is_admin:
                self._web.check_origin(headers)
        if scope["method"] not in ("GET", "HEAD"):
            self._context.check_serving()
            self._check_body(headers, body)

    def _check_body(self, headers: Headers, body: RequestBody) -> None:
        encoding = headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise ApiError(415, f"a body encoded as {encoding} cannot be read; send it as it is", code="encoded_body")
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._context.options.max_body_bytes:
            raise body.too_large()


def _check_key(keys: list[bytes], headers: Headers, name: str) -> None:
    # Every key is compared in constant time, so that the time does not tell which one matches.
    matches = [hmac.compare_digest(given, known) for given in _given_keys(headers) for known in keys]
    if not any(matches):
        raise ApiError(
            401,
            f"a valid {name} is needed: send the header 'Authorization: Bearer KEY'",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )


def _given_keys(headers: Headers) -> Iterator[bytes]:
    """A request's keys: OpenAI's header, and Anthropic's. A foreign page's script can set neither."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        yield key.strip().encode()
    if "x-api-key" in headers:
        yield headers["x-api-key"].strip().encode()
