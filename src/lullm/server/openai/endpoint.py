"""The endpoints that generate text: one handler for every dialect.

A body of any dialect is translated into OpenAI's form, so that limits, tools and thinking are handled in one place. A
form writes the answer.
"""

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from lullm.errors import InvalidRequestError
from lullm.server.context import ServerContext, off_loop
from lullm.server.error import ApiError
from lullm.server.gate.request_log import begun, log_prompts
from lullm.server.lora.served import Adapter
from lullm.server.openai.event_stream import EventStream
from lullm.server.openai.generation import Generation, prepare_all, public_id
from lullm.server.openai.reply import Reply
from lullm.server.openai.schema import ChatBody, CompletionBody, DialectBody
from lullm.server.openai.validation import (
    check_num_logprobs,
    check_num_sequences,
    check_priority,
    check_token_lists,
    keep_alive_s,
    sampling_params,
)
from lullm.server.sse import until_disconnect
from lullm.types.outputs import RequestOutput

Body = TypeVar("Body", bound=DialectBody)

_SHORT_BYTES = 1 << 16


class AnswerForm(Protocol):
    """A generation's outputs in one dialect, whole or in chunks."""

    @property
    def media_type(self) -> str:
        """The media type of the joined chunks."""
        ...

    async def whole(self) -> list[bytes]:
        """The answer as pieces of JSON. Raises as `Generation.run` does."""
        ...

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """A stream's addition for one output of a prompt; may be empty."""
        ...

    def end(self) -> bytes:
        """The last chunk, after all outputs; may be empty."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """The last chunk of an answer that fails after its first."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[Body]):
    """One of the endpoints, as a handler of its requests.

    `id_prefix`: of the answers' ids. `of`: the context of the model of a name; raises ApiError if there is none.
    `read`: the body of a request, as `ServerContext.read`.
    """

    context: ServerContext
    body_type: type[Body]
    open_form: Callable[[Generation, Body], Awaitable[AnswerForm]]
    id_prefix: str
    of: Callable[[ServerContext, str | None], ServerContext] = ServerContext.of
    read: Callable[[ServerContext, type[Body], Request], Awaitable[Body]] = ServerContext.read

    async def __call__(self, request: Request) -> Response:
        """Answer a request, at once or in chunks.

        Raises:
            ApiError, InvalidRequestError: with the name of the body's field.
        """
        body = await self.read(self.context, self.body_type, request)
        context = self.of(self.context, body.model)
        with fields_named(body):
            asked = await off_loop(request, lambda: body.translated(context.engine))
            adapter = context.adapters.of(body.model)
            generation = await _prepared(context, request, asked, self.id_prefix, adapter)
        generation.record = begun(request, generation.id, generation.logged_usage)
        return await self.answered(request, generation, await self.open_form(generation, body))

    async def answered(self, request: Request, generation: Generation, form: AnswerForm) -> Response:
        """The answer to a request, at once or in chunks. Raises as the call does."""
        timeout_s = self.context.options.request_timeout_s
        if generation.asked.stream:
            return EventStream(generation, form, timeout_s)
        return JsonPieces(await until_disconnect(request.receive, form.whole(), timeout_s))


def reply_form(kind: Callable[[Reply, Body], AnswerForm]) -> Callable[[Generation, Body], Awaitable[AnswerForm]]:
    """An `open_form` for answers that are one reply each."""

    async def opened(generation: Generation, body: Body) -> AnswerForm:
        return kind(Reply.of(generation), body)

    return opened


@dataclass(frozen=True, slots=True)
class TokenCount(Generic[Body]):
    """The handler that counts the tokens of a body's prompt. `answer`: other fields of the answer. `read`: as above."""

    context: ServerContext
    body_type: type[Body]
    answer: Mapping[str, str] = field(default_factory=dict)
    read: Callable[[ServerContext, type[Body], Request], Awaitable[Body]] = ServerContext.read

    async def __call__(self, request: Request) -> Response:
        """Raises ApiError, InvalidRequestError: with the name of the body's field."""
        body = await self.read(self.context, self.body_type, request)
        engine = self.context.of(body.model).engine
        with fields_named(body):
            [prompt] = body.translated(engine).prompts()
            token_ids = await engine.tokenize(prompt)
        return JSONResponse({**self.answer, "input_tokens": len(token_ids)})


async def _prepared(
    context: ServerContext,
    request: Request,
    asked: CompletionBody | ChatBody,
    id_prefix: str,
    adapter: Adapter | None,
) -> Generation:
    """The engine's requests for a body, checked. Raises ApiError, InvalidRequestError."""
    context.queue.check()
    engine = context.engine
    answer_id = public_id(id_prefix, request.headers, asked.request_id)
    try:
        params, prompts = await off_loop(request, lambda: (sampling_params(asked, engine), asked.prompts()))
        priority, keep_alive = check_priority(asked, engine), keep_alive_s(asked)
        check_num_sequences(len(prompts), params, engine.config.max_num_seqs)
        check_token_lists(len(prompts), params, engine.config.max_num_seqs)
        requests = await prepare_all(engine, answer_id, prompts, params, priority, adapter)
    except InvalidRequestError as error:
        message = _renamed(str(error), error.param, asked)
        raise InvalidRequestError(message, asked.field_of(error.param), error.code) from None
    log_prompts(requests, context.options)
    check_num_logprobs(asked, requests, engine.config.max_model_len, context.max_request_logprobs)
    return Generation(context, answer_id, asked, requests, keep_alive)


@contextlib.contextmanager
def fields_named(body: DialectBody) -> Iterator[None]:
    """Errors name OpenAI's fields; a body of another dialect has its own names for them."""
    if isinstance(body, CompletionBody | ChatBody):
        yield
        return
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(
            _renamed(str(error), error.param, body), body.field_of(error.param), error.code
        ) from None
    except ApiError as error:
        error.args = (_renamed(str(error), error.param, body),)
        error.param = body.field_of(error.param)
        raise


def _renamed(message: str, param: str | None, body: DialectBody) -> str:
    """The message with the body's own name of the field that it begins with."""
    if param is None or not message.startswith(param):
        return message
    return f"{body.field_of(param)}{message[len(param) :]}"


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
        while self._pieces:  # each is dropped once it is sent
            body = self._pieces.popleft()
            await send({"type": "http.response.body", "body": body, "more_body": bool(self._pieces)})
