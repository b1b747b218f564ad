"""The endpoints that generate text: one handler, and a form for each endpoint's answers.

A form turns the engine's outputs into JSON: `CompletionForm`, `ChatForm`.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from lullm.engine.client import EngineClient
from lullm.errors import InvalidRequestError
from lullm.server.context import ServerContext
from lullm.server.openai.chat import ChatForm
from lullm.server.openai.completion import CompletionForm
from lullm.server.openai.generation import Generation, Usage, prepare_all, public_id
from lullm.server.openai.schema import ChatBody, CompletionBody
from lullm.server.openai.validation import (
    check_num_logprobs,
    check_num_sequences,
    check_priority,
    check_token_lists,
    keep_alive_s,
    sampling_params,
)
from lullm.server.sse import DONE, EventStream, encode, event, until_disconnect
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest

Body = TypeVar("Body", CompletionBody, ChatBody)

_SHORT_BYTES = 1 << 16


def router(context: ServerContext) -> APIRouter:
    """The endpoints over `context`'s engine."""
    routes = APIRouter()
    completions = Endpoint(context, CompletionBody, CompletionForm.open, "cmpl")
    chat = Endpoint(context, ChatBody, ChatForm.open, "chatcmpl")
    routes.add_api_route("/v1/completions", completions, methods=["POST"])
    routes.add_api_route("/v1/chat/completions", chat, methods=["POST"])
    return routes


class AnswerForm(Protocol):
    """The wire form of one generation's outputs. `number`: which of the request's prompts an output belongs to."""

    object_name: str
    chunk_name: str

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of a prompt's only output, in order."""
        ...

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of one of a prompt's outputs, as far as they say something new."""
        ...

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        """Fields of the whole answer beside its choices."""
        ...

    def usage(self, counted: Usage) -> Usage:
        """What was counted, as the client shall see it."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """One of the endpoints, as a handler of its requests. `id_prefix`: of the answers' ids."""

    context: ServerContext
    body_type: type[Body]
    open_form: Callable[[EngineClient, Body, list[GenerateRequest]], Awaitable[AnswerForm]]
    id_prefix: str

    async def __call__(self, request: Request) -> Response:
        """Answer a request, at once or as server-sent events.

        Raises:
            ApiError, InvalidRequestError: with the name of the body's field.
        """
        body = await self.context.read(self.body_type, request)
        self.context.check_model(body.model)
        engine, answer_id = self.context.engine, public_id(self.id_prefix, request.headers)
        try:
            params = sampling_params(body, engine)
            priority, keep_alive = check_priority(body, engine), keep_alive_s(body)
            prompts = body.prompts()
            check_num_sequences(len(prompts), params)
            check_token_lists(len(prompts), params, engine.config.max_num_seqs)
            requests = await prepare_all(engine, answer_id, prompts, params, priority)
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error), body.field_of(error.param), error.code) from None
        check_num_logprobs(body, requests, engine.config.max_model_len, self.context.max_request_logprobs)
        form = await self.open_form(engine, body, requests)
        streams = [engine.stream(prepared, keep_alive) for prepared in requests]
        answer = Answer(Generation(self.context, answer_id, requests, streams), form, body.wants_usage)
        if body.stream:
            return EventStream(answer.chunks(), self.context.api_error)
        return JsonPieces(await until_disconnect(request.receive, answer.whole()))


class JsonPieces(Response):
    """A JSON answer in pieces, which are joined only if it is short: with log-probabilities it may have 100 MB."""

    media_type = "application/json"

    def __init__(self, pieces: list[bytes]):
        super().__init__()
        num_bytes = sum(map(len, pieces))
        self.headers["content-length"] = str(num_bytes)
        self._pieces = deque(pieces if num_bytes > _SHORT_BYTES else (b"".join(pieces),))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while self._pieces:  # each is forgotten once it is on its way
            body = self._pieces.popleft()
            await send({"type": "http.response.body", "body": body, "more_body": bool(self._pieces)})


@dataclass(frozen=True, slots=True)
class Answer:
    """A generation's outputs in a wire form, whole or in chunks."""

    generation: Generation
    form: AnswerForm
    with_usage: bool

    async def whole(self) -> list[bytes]:
        """The answer as pieces of JSON.

        Choices become JSON one by one: as Python's objects, log-probabilities take four times the bytes of their JSON.
        """
        choices: dict[int, bytes] = {}
        extra: dict[str, Any] = {}
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for number, output in outputs:
                if not output.finished:
                    continue
                for choice in self.form.choices(number, output):
                    if choices:  # thousands of choices take seconds: other requests have their turn between them
                        await asyncio.sleep(0)
                    choices[choice["index"]] = encode(choice)
                extra |= self.form.extra(output)
        head = encode(self.generation.head(self.form.object_name))
        tail = encode({"usage": self._usage()} | extra)
        pieces = [head[:-1], b',"choices":[']
        for index in sorted(choices):
            pieces += [choices[index], b","]
        return [*pieces[:-1], b"],", tail[1:]]

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer as server-sent events."""
        head = self.generation.head(self.form.chunk_name)
        tail = {"usage": None} if self.with_usage else {}
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for number, output in outputs:
                for choice in self.form.deltas(number, output):
                    yield event({**head, "choices": [choice], **tail})
        if self.with_usage:
            yield event({**head, "choices": [], "usage": self._usage()})
        yield DONE

    def _usage(self) -> dict[str, Any]:
        return self.form.usage(self.generation.usage).as_dict()
