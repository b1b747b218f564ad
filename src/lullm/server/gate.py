"""Gate: the ASGI middleware every request passes: API key, draining, body length, request id, counting."""

import hmac
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lullm.server.context import ServerContext
from lullm.server.error import ApiError

OPEN_PATHS = frozenset({"/health"})  # load balancers carry no key
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:\-]{1,128}")


def request_id(headers: Headers) -> str | None:
    """The client's `X-Request-Id`, if it is one that can stand in a header and a log line."""
    value = headers.get("x-request-id")
    return value if value is not None and _REQUEST_ID.fullmatch(value) else None


class Gate:
    """Refuses what must not reach a route, and bounds what a route reads.

    GET requests pass while the server drains (a scraper wants the last numbers) and are not waited for.
    """

    def __init__(self, app: ASGIApp, context: ServerContext):
        self._app = app
        self._context = context
        self._keys = [key.encode() for key in context.options.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        client_id = request_id(headers)
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                if client_id is not None:
                    MutableHeaders(scope=message)["X-Request-Id"] = client_id
            await send(message)

        try:
            await self._pass(scope, headers, receive, send_with_id)
        except Exception as error:  # refused here, or a failure that no route foresaw
            if started:
                raise
            await self._context.api_error(error).response()(scope, receive, send_with_id)

    async def _pass(self, scope: Scope, headers: Headers, receive: Receive, send: Send) -> None:
        self._check_key(scope["path"], headers)
        if scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        self._context.check_serving()
        self._check_content_length(headers)
        self._context.enter()
        try:
            await self._app(scope, self._bounded(receive), send)
        finally:
            self._context.leave()

    def _check_key(self, path: str, headers: Headers) -> None:
        if not self._keys or path in OPEN_PATHS:
            return
        scheme, _, key = headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        # Every key is compared, in constant time each, so that the time taken tells nothing.
        matches = [hmac.compare_digest(given, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise ApiError(
                401,
                "a valid API key is needed: send the header 'Authorization: Bearer KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )

    def _check_content_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._context.options.max_body_bytes:
            raise self._too_large()

    def _bounded(self, receive: Receive) -> Receive:
        """`receive` that counts what really arrives: a chunked body announces no length."""
        num_bytes = 0

        async def bounded_receive() -> Message:
            nonlocal num_bytes
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._context.options.max_body_bytes:
                    raise self._too_large()
            return message

        return bounded_receive

    def _too_large(self) -> ApiError:
        limit = self._context.options.max_body_bytes
        return ApiError(413, f"the body is longer than {limit} bytes", code="body_too_large")
