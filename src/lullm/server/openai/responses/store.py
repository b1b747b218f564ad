"""ResponseStore: responses that later requests go on from, in this process's memory."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from pydantic_core import from_json

from lullm.log import get_logger
from lullm.server.context import REFERRED_BYTES, ServerContext, off_loop
from lullm.server.error import ApiError
from lullm.server.openai.responses.body import ResponsesBody, items_of
from lullm.server.openai.responses.reference import no_item, references, resolved, response_of
from lullm.server.sse import encode
from lullm.server.wire import Body, parse_json
from lullm.units import format_bytes

logger = get_logger(__name__)

Work = Callable[[], asyncio.Task[None]]


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """One response, as JSON: its size is known so, and is a fraction of that of objects.

    Attributes:
        response: as its request got it.
        items: the conversation, up to the answer; with it, if there is one.
        status: OpenAI's.
        task: that computes it; None: it was asked for in the foreground, or has been computed.
    """

    response: bytes
    items: bytes
    status: str
    is_background: bool
    task: asyncio.Task[None] | None = None

    @property
    def num_bytes(self) -> int:
        return len(self.response) + len(self.items)

    @property
    def is_answered(self) -> bool:
        return self.status in ("completed", "incomplete")


class ResponseStore:
    """Responses by id. The oldest make room for new ones, but for those that are being computed.

    Args:
        max_bytes: of their JSON; None: none are stored.
    """

    def __init__(self, max_bytes: int | None):
        self._max_bytes = max_bytes
        self._stored: dict[str, StoredResponse] = {}
        self._num_bytes = 0

    async def read(self, context: ServerContext, kind: type[Body], request: Request) -> Body:
        """The body of `request`, whose `input` is the whole conversation: that of the previous response comes first,
        and items of stored responses stand in place of references to them.

        Raises ApiError: as `ServerContext.read` does; there is no previous response to go on from, or no such item, or
        they are too long.
        """
        raw = await request.body()
        fields = await off_loop(request, lambda: parse_json(raw))
        previous, given = fields.get("previous_response_id"), fields.get("input")
        if not isinstance(given, str | list):
            previous = None  # the body's own checks tell what is wrong
        items = self._previous(previous).items if isinstance(previous, str) else b"[]"
        told = self._referred(given)
        if not told and not isinstance(previous, str):
            return await context.read(kind, request, lambda _: fields)
        room = context.options.max_body_bytes - len(raw) - len(items)
        if room < 0:
            raise ApiError(
                413,
                f"the conversation is longer than {context.options.max_body_bytes} bytes",
                param="previous_response_id",
                code="body_too_large",
            )
        request.scope[REFERRED_BYTES] = len(items) + sum(map(len, told.values()))
        whole = await off_loop(request, lambda: from_json(items) + resolved(items_of(given), told, room))
        return await context.read(kind, request, lambda _: fields | {"input": whole})

    def _referred(self, given: Any) -> dict[str, bytes]:
        """The responses, as JSON, whose items `given` refers to; without a store there are none.

        Raises ApiError: one is not here (any more).
        """
        told: dict[str, bytes] = {}
        for place, name in references(given) if self._max_bytes is not None else ():
            found = self._stored.get(response_of(name))
            if found is None:
                raise no_item(place, name)
            told[response_of(name)] = found.response
        return told

    def _previous(self, response_id: str) -> StoredResponse:
        param = "previous_response_id"
        if self._max_bytes is None:
            raise ApiError(
                400,
                f"{param}: responses are not kept here (--response-store); send the whole conversation as input",
                param=param,
                code="unsupported_field",
            )
        found = self._stored.get(response_id)
        if found is None:
            raise ApiError(
                400,
                f"{param}: there is no response {response_id!r} (any more); send the whole conversation as input",
                param=param,
                code="previous_response_not_found",
            )
        if not found.is_answered:
            text = f"{param}: the response {response_id!r} has no answer to go on from: it is {found.status}"
            raise ApiError(400, text, param=param)
        return found

    def stores(self, body: ResponsesBody) -> bool:
        """Whether the response to a request is stored: it is by default, as OpenAI's are."""
        return self._max_bytes is not None and body.store is not False

    def check_background(self, body: ResponsesBody) -> None:
        """Raises ApiError: a request asks for an answer in the background that nobody could get."""
        if self._max_bytes is None:
            raise ApiError(
                400,
                "background needs a server that keeps responses (--response-store); ask for a stream",
                param="background",
                code="unsupported_field",
            )
        if body.store is False:
            raise ApiError(400, "background needs store=true", param="background")
        if body.stream:
            raise ApiError(400, "background goes without stream: retrieve the response", param="background")

    def put(self, response: dict[str, Any], body: ResponsesBody, work: Work | None = None) -> bytes:
        """Store a response, in place of its earlier state; returns its JSON. One that has no room is not stored.

        Args:
            body: of its request.
            work: starts what computes the response.

        Raises:
            ApiError: 429: there is no room for what `work` would compute.
        """
        told = encode(response)
        items = encode(body.items() + response["output"])
        name, num_bytes = response["id"], len(told) + len(items)
        self._drop(name)
        if not self._make_room(num_bytes):
            if work is not None:
                raise ApiError(
                    429,
                    "responses in the background take all of --response-store; try again later",
                    code="queue_full",
                    headers={"Retry-After": "5"},
                )
            logger.warning("%s is not stored: its %s have no room", name, format_bytes(num_bytes))
            return told
        task = None if work is None else work()
        self._stored[name] = StoredResponse(told, items, response["status"], bool(body.background), task)
        self._num_bytes += num_bytes
        return told

    def get(self, response_id: str) -> StoredResponse:
        """Raises ApiError: 404: there is none."""
        if self._max_bytes is None:
            raise ApiError(
                404,
                "responses are not kept here (--response-store): send their items back as input",
                code="response_not_found",
            )
        found = self._stored.get(response_id)
        if found is None:
            raise ApiError(404, f"there is no response {response_id!r} (any more)", code="response_not_found")
        return found

    def delete(self, response_id: str) -> None:
        """Forget a response; one that is being computed ends. Raises as `get` does."""
        self.get(response_id)
        self._drop(response_id)

    def cancel(self, response_id: str) -> bytes:
        """End a response in the background; returns its JSON, which an ended one keeps. Raises as `get` does.

        Raises ApiError: 400: it is not in the background.
        """
        found = self.get(response_id)
        if not found.is_background:
            raise ApiError(400, "only a response in the background can be cancelled: this one has its answer")
        if found.task is None:
            return found.response
        self._drop(response_id)
        told = encode(from_json(found.response) | {"status": "cancelled"})
        ended = StoredResponse(told, found.items, "cancelled", is_background=True)
        self._stored[response_id] = ended
        self._num_bytes += ended.num_bytes
        return told

    def _make_room(self, num_bytes: int) -> bool:
        """Forget the oldest responses as far as so many bytes need it. False: they have no room."""
        room = (self._max_bytes or 0) - num_bytes
        if 0 <= room < self._num_bytes:
            for name in [name for name, stored in self._stored.items() if stored.task is None]:
                self._drop(name)
                if self._num_bytes <= room:
                    break
        return self._num_bytes <= room

    def _drop(self, response_id: str) -> None:
        found = self._stored.pop(response_id, None)
        if found is None:
            return
        self._num_bytes -= found.num_bytes
        if found.task is not None and found.task is not asyncio.current_task():
            found.task.cancel()
