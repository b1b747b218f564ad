"""Vectors: the pooled outputs of one HTTP request's prompts, its answer, and the field names in its errors."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import Response

from lullm.errors import InvalidRequestError
from lullm.server.context import ServerContext
from lullm.server.error import ApiError
from lullm.server.gate.request_log import RequestRecord, begun, log_prompts
from lullm.server.openai.endpoint import JsonPieces
from lullm.server.openai.generation import answered_name, prepare_all, public_id
from lullm.server.openai.schema import QueuedBody
from lullm.server.openai.validation import check_priority, keep_alive_s
from lullm.server.pooling.schema import InputBody
from lullm.server.sse import encode, until_disconnect
from lullm.types.pooling.outputs import PoolingOutput, PoolingRequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import GenerateRequest, Input

T = TypeVar("T")

Element = Callable[[int, Any], Iterable[bytes]]
"""(place of a prompt, its numbers) -> its element of a JSON array, in pieces."""

MAX_NUMBERS = 1 << 23
"""Numbers in one answer: 2048 embeddings of 4096 elements. As JSON they take 170 MB."""


@dataclass(slots=True)
class Vectors:
    """The engine's requests of one HTTP request, in the order of its prompts.

    `cached_tokens`: counted as they end. `record`: for the log.
    """

    context: ServerContext
    id: str
    requests: list[GenerateRequest]
    keep_alive: float | None
    created: int = field(default_factory=lambda: int(time.time()))
    cached_tokens: int = 0
    record: RequestRecord = field(default_factory=RequestRecord)

    @classmethod
    async def prepare(
        cls,
        context: ServerContext,
        body: QueuedBody,
        answer_id: str,
        prompts: Sequence[Input],
        params: PoolingParams,
        model: str | None,
    ) -> "Vectors":
        """Check and tokenize all prompts. `model`: the name in the body. Raises ApiError, InvalidRequestError."""
        context.queue.check()
        priority, keep_alive = check_priority(body, context.engine), keep_alive_s(body)
        requests = await prepare_all(context.engine, answer_id, prompts, params, priority, context.adapters.of(model))
        log_prompts(requests, context.options)
        return cls(context, answer_id, requests, keep_alive)

    async def outputs(self) -> AsyncGenerator[PoolingRequestOutput[PoolingOutput], None]:
        """The outputs in the order of the prompts, which run together. Closing the generator aborts the running ones.

        Raises as `Generation.outputs` does.
        """
        pool = self.context.engine.pool
        tasks = [asyncio.create_task(pool(request, self.keep_alive)) for request in self.requests]
        try:
            with (
                self.context.queue.holding(self.requests),
                self.context.tracing.spans(self.requests, "embeddings") as spans,
            ):
                for number, task in enumerate(tasks):
                    output = await task
                    if output.finish_reason == "abort":
                        raise self.context.aborted(output.stop_reason)
                    self.cached_tokens += output.num_cached_tokens
                    self.record.observe(output.metrics)
                    self.context.metrics.observe(output)
                    spans.finish(number, output)
                    yield output
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def all(self) -> list[PoolingRequestOutput[PoolingOutput]]:
        """All outputs at once."""
        async with contextlib.aclosing(self.outputs()) as outputs:
            return [output async for output in outputs]

    async def answered(self, request: Request, work: Coroutine[Any, Any, T]) -> T:
        """The result of work on the outputs, for this HTTP request. Raises as `until_disconnect` does."""
        self.record = begun(request, self.id, self.usage)
        return await until_disconnect(request.receive, work, self.context.options.request_timeout_s)

    async def response(self, request: Request, pieces: Coroutine[Any, Any, list[bytes]]) -> Response:
        """The answer in pieces of JSON, such as `listed`. Raises as `answered` does."""
        return JsonPieces(await self.answered(request, pieces))

    async def array(self, element: Element) -> list[bytes]:
        """A JSON array in pieces. As Python's objects, vectors take several times the bytes of their JSON."""
        pieces, index = [b"["], 0
        async for output in self.outputs():
            pieces += [*element(index, output.outputs.data), b","]
            index += 1
        return [*pieces[:-1], b"]"]

    async def listed(self, element: Element) -> list[bytes]:
        """OpenAI's list of such elements."""
        data = await self.array(element)
        return [encode(self.head())[:-1], b',"data":', *data, b",", encode({"usage": self.usage()})[1:]]

    def head(self) -> dict[str, Any]:
        """The first fields of OpenAI's lists."""
        return {
            "id": self.id,
            "object": "list",
            "created": self.created,
            "model": answered_name(self.context, self.requests),
        }

    def usage(self) -> dict[str, Any]:
        """Tokens of all prompts."""
        num_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        details = {"cached_tokens": self.cached_tokens}
        return {"prompt_tokens": num_tokens, "total_tokens": num_tokens, "prompt_tokens_details": details}


async def prepared_inputs(context: ServerContext, request: Request, body: InputBody, id_prefix: str) -> Vectors:
    """The engine's requests for a body, checked. `id_prefix`: of the answer's id.

    Raises ApiError, InvalidRequestError: with the name of the body's field.
    """
    answer_id = public_id(id_prefix, request.headers)
    with fields_named(prompt="input"):
        vectors = await Vectors.prepare(context, body, answer_id, body.prompts(), body.params(), body.model)
    _check_size(vectors)
    return vectors


def _check_size(vectors: Vectors) -> None:
    """Check that the answer may be sent. Raises ApiError."""
    model, total = vectors.context.engine.model_config, 0
    for each in vectors.requests:
        assert each.pooling is not None and model.pooler is not None, "it pools"
        num_rows, num_columns = model.pooler.answer_shape(each.pooling, each.prompt_token_ids, model.pooled_size)
        total += num_rows * num_columns
    if total > MAX_NUMBERS:
        raise ApiError(
            400,
            f"the answer would have {total} numbers, and one may have {MAX_NUMBERS}; send fewer or shorter inputs at "
            "once (truncate_prompt_tokens), ask for fewer dimensions, or call LLM.encode, which has no such bound",
            param="input",
            code="too_many_numbers",
        )


@contextlib.contextmanager
def fields_named(**names: str) -> Iterator[None]:
    """Replace an engine's parameter in errors by the body's field of that parameter."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error), names.get(error.param or "", error.param), error.code) from None
