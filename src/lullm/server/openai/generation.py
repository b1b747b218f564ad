"""Generation: the outputs of one HTTP request's prompts as one stream, and its usage."""

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers

from lullm.engine.client import EngineClient
from lullm.server.context import ServerContext
from lullm.server.gate.gate import request_id
from lullm.server.gate.request_log import RequestRecord
from lullm.server.openai.schema import ChatBody, CompletionBody
from lullm.server.tracing import Operation, RequestSpans
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import GenerateRequest, Input
from lullm.types.sampling_params import SamplingParams

_serial = itertools.count()
_QUEUE_LEN = 64  # outputs of a batch that may wait for a slow client before their producers pause


@dataclass(slots=True)
class Usage:
    """Tokens of one HTTP request, over all its prompts and completions."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int | None = None  # of the completion tokens; None: replies are not read

    def as_dict(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }
        if self.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


@dataclass(slots=True)
class Generation:
    """One HTTP request for text: the engine's requests, their outputs, and the usage so far.

    `asked`: the request's body in OpenAI's words. `record`: for the log.
    """

    context: ServerContext
    id: str
    asked: CompletionBody | ChatBody
    requests: list[GenerateRequest]
    streams: list[AsyncGenerator[RequestOutput, None]]  # of `requests`, one each; not begun
    created: int = field(default_factory=lambda: int(time.time()))
    usage: Usage = field(default_factory=Usage)
    record: RequestRecord = field(default_factory=RequestRecord)
    _num_tokens: dict[int, dict[int, int]] = field(default_factory=dict)
    """By prompt and completion: outputs are deltas, or one final output, each of which counts once."""
    _num_ended: int = 0

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of every answer and chunk; `kind` is OpenAI's name of the object."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.context.model_name}

    async def outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt number, output) as the engine gives them. Closing the generator aborts what still runs.

        Raises:
            InvalidRequestError: at the first item; see `EngineClient.stream`.
            EngineAsleepError: the engine sleeps, does not wake up in time, or aborted a request to sleep.
            WakeUpError: the engine could not be woken for the request.
            EngineDeadError: the engine stopped first.
        """
        self.usage.prompt_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        operation: Operation = "chat" if isinstance(self.asked, ChatBody) else "text_completion"
        with (
            self.context.queue.holding(self.requests),
            self.context.tracing.spans(self.requests, operation) as spans,
        ):
            if len(self.streams) == 1:
                async with contextlib.aclosing(self.streams[0]) as stream:
                    async for output in stream:
                        self._count(0, output, spans)
                        yield 0, output
            else:
                async with contextlib.aclosing(_merged(self.streams)) as streams:
                    async for number, output in streams:
                        self._count(number, output, spans)
                        yield number, output

    def is_over(self) -> bool:
        """Whether the last output of every prompt has come."""
        return self._num_ended == len(self.requests)

    def _count(self, number: int, output: RequestOutput, spans: RequestSpans) -> None:
        """Take in the output of a prompt. Raises as `outputs` does: it was aborted."""
        counts = self._num_tokens.setdefault(number, {})
        for completion in output.outputs:
            counts[completion.index] = counts.get(completion.index, 0) + len(completion.token_ids)
            self.usage.completion_tokens += len(completion.token_ids)
            if completion.finish_reason == "abort":
                raise self.context.aborted(completion.stop_reason)
        if not output.finished:
            return
        params, num_tokens = self.requests[number].params, tuple(counts.values())
        if len(counts) < params.n:  # aborted before its first token
            raise self.context.aborted()
        self._num_ended += 1
        self.usage.cached_tokens += output.num_cached_tokens
        self.record.observe(output.metrics)
        self.context.metrics.observe(output, num_tokens, params)
        spans.finish(number, output, num_tokens)


async def _merged(
    streams: Sequence[AsyncGenerator[RequestOutput, None]],
) -> AsyncGenerator[tuple[int, RequestOutput], None]:
    """(number of the stream, output) of several streams as they come; the first error ends all."""
    queue: asyncio.Queue[tuple[int, RequestOutput | Exception | None]] = asyncio.Queue(_QUEUE_LEN)

    async def pump(number: int, stream: AsyncGenerator[RequestOutput, None]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for output in stream:
                    await queue.put((number, output))
        except Exception as error:
            await queue.put((number, error))
        else:
            await queue.put((number, None))

    pumps = [asyncio.create_task(pump(number, stream)) for number, stream in enumerate(streams)]
    try:
        num_open = len(pumps)
        while num_open:
            number, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_open -= 1
            else:
                yield number, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def prepare_all(
    engine: EngineClient,
    answer_id: str,
    prompts: Sequence[Input],
    params: SamplingParams | PoolingParams,
    priority: int,
) -> list[GenerateRequest]:
    """The engine's requests of one HTTP request. Raises InvalidRequestError, EngineDeadError."""
    requests: list[GenerateRequest] = []
    for prompt in prompts:
        if requests:  # thousands of short prompts take seconds: other requests have their turn between them
            await asyncio.sleep(0)
        # Two clients may send the same X-Request-Id at the same time; the engine's ids are unique all the same.
        requests.append(await engine.prepare(f"{answer_id}-{next(_serial)}", prompt, params, priority))
    return requests


def public_id(prefix: str, headers: Headers, own_id: str | None = None) -> str:
    """`prefix` and the client's own request id, from the header or the body, or a random one."""
    return f"{prefix}-{request_id(headers) or own_id or uuid.uuid4().hex}"
