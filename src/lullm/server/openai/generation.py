"""Generation: the outputs of one HTTP request's prompts, and its usage."""

import asyncio
import itertools
import time
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.datastructures import Headers

from lullm.engine.client import EngineClient
from lullm.server.context import ServerContext
from lullm.server.gate.gate import request_id
from lullm.server.gate.request_log import RequestRecord
from lullm.server.lora.served import Adapter
from lullm.server.openai.schema import ChatBody, CompletionBody
from lullm.server.tracing import Operation, RequestSpans
from lullm.types.lora.prompt_adapter import PromptAdapterRequest
from lullm.types.lora.request import LoRARequest
from lullm.types.outputs import RequestOutput
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.pooling.params import PoolingParams
from lullm.types.request import CallerRequest, GenerateRequest, Input
from lullm.types.sampling_params import SamplingParams

_serial = itertools.count()


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

    `asked`: the request's body in OpenAI's form. `keep_alive`: see `EngineClient.stream`. `record`: for the log.
    """

    context: ServerContext
    id: str
    asked: CompletionBody | ChatBody
    requests: list[GenerateRequest]
    keep_alive: float | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    usage: Usage = field(default_factory=Usage)
    record: RequestRecord = field(default_factory=RequestRecord)
    _num_tokens: dict[int, dict[int, int]] = field(default_factory=dict)
    """By prompt and completion: outputs are deltas, or one final output, and each counts once."""
    _num_ended: int = 0

    def head(self, kind: str) -> dict[str, Any]:
        """The first fields of every answer and chunk; `kind` is OpenAI's name of the object."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model_name}

    @property
    def model_name(self) -> str:
        """The name in the answer: the adapter's, or the model's."""
        return answered_name(self.context, self.requests)

    async def run(self, reader: "AnswerReader") -> None:
        """Have `reader` take the outputs as the engine gives them. Cancelling the call aborts the running requests.

        Raises:
            InvalidRequestError: see `EngineClient.stream`.
            EngineAsleepError: the engine sleeps, does not wake up in time, or aborted a request to sleep.
            WakeUpError: the engine could not be woken for the request.
            EngineDeadError: the engine stopped first. Errors of `reader`.
        """
        self.usage.prompt_tokens = sum(len(request.prompt_token_ids) for request in self.requests)
        operation: Operation = "chat" if isinstance(self.asked, ChatBody) else "text_completion"
        engine, context = self.context.engine, self.context
        with context.queue.holding(self.requests), context.tracing.spans(self.requests, operation) as spans:
            runs = [
                engine.run(request, _PromptReader(self, number, reader, spans), self.keep_alive)
                for number, request in enumerate(self.requests)
            ]
            await (runs[0] if len(runs) == 1 else _all(runs))

    async def last_outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """(prompt number, last output) as they end. Closing the generator aborts the running requests. Raises as `run`
        does.

        None waits for the others, so that each is dropped once it is written: with log-probabilities they are large.
        """
        reader = _LastOutputs()
        running = asyncio.ensure_future(self.run(reader))
        running.add_done_callback(lambda _: reader.wake())
        try:
            while reader.found or not running.done():
                if reader.found:
                    yield reader.found.popleft()
                else:
                    await reader.more()
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    def logged_usage(self) -> dict[str, Any]:
        """The usage so far, for the log. `completion_tokens` is None if the answer is whole and has not come."""
        usage = self.usage.as_dict()
        return usage if self.asked.stream or self.is_over() else usage | {"completion_tokens": None}

    def is_over(self) -> bool:
        """Whether the last output of every prompt has come."""
        return self._num_ended == len(self.requests)

    def count(self, number: int, output: RequestOutput, spans: RequestSpans) -> None:
        """Count the output of a prompt. Raises as `run` does: it was aborted."""
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


class AnswerReader(Protocol):
    """Takes the outputs of a generation; see `Reader`. `number`: of the prompt."""

    @property
    def is_ready(self) -> bool: ...

    def when_ready(self, call: Callable[[], None]) -> None: ...

    def take(self, number: int, output: RequestOutput) -> None: ...


@dataclass(slots=True)
class _PromptReader:
    """Counts the outputs of one prompt on their way to the answer."""

    generation: Generation
    number: int
    reader: AnswerReader
    spans: RequestSpans

    @property
    def is_ready(self) -> bool:
        return self.reader.is_ready

    def when_ready(self, call: Callable[[], None]) -> None:
        self.reader.when_ready(call)

    def take(self, output: EngineOutput) -> None:
        assert isinstance(output, RequestOutput)
        self.generation.count(self.number, output, self.spans)
        self.reader.take(self.number, output)


class _LastOutputs:
    """Keeps the last output of each prompt."""

    is_ready = True

    def __init__(self) -> None:
        self.found: deque[tuple[int, RequestOutput]] = deque()
        self._more = asyncio.Event()

    def when_ready(self, call: Callable[[], None]) -> None: ...

    def take(self, number: int, output: RequestOutput) -> None:
        if output.finished:
            self.found.append((number, output))
            self.wake()

    def wake(self) -> None:
        """End the wait for more."""
        self._more.set()

    async def more(self) -> None:
        """Return once an output has come, or the end."""
        await self._more.wait()
        self._more.clear()


async def _all(runs: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run several at once; the first error ends all."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def prepare_all(
    engine: EngineClient,
    answer_id: str,
    prompts: Sequence[Input],
    params: SamplingParams | PoolingParams,
    priority: int,
    adapter: Adapter | None = None,
) -> list[GenerateRequest]:
    """The engine's requests of one HTTP request. Raises InvalidRequestError, EngineDeadError."""
    requests: list[GenerateRequest] = []
    lora = adapter if isinstance(adapter, LoRARequest) else None
    prompt_adapter = adapter if isinstance(adapter, PromptAdapterRequest) else None
    for prompt in prompts:
        if requests:  # thousands of short prompts take seconds, so other requests run in between
            await asyncio.sleep(0)
        # Two clients may send the same X-Request-Id at the same time; the engine's ids must still be unique.
        unique_id = f"{answer_id}-{next(_serial)}"
        asked = CallerRequest(unique_id, prompt, params, priority, lora, prompt_adapter)
        requests.append(await engine.prepare(asked))
    return requests


def answered_name(context: ServerContext, requests: Sequence[GenerateRequest]) -> str:
    """The name of the requests' adapter, or of the model."""
    adapter = requests[0].prompt_adapter or requests[0].lora if requests else None
    return context.model_name if adapter is None else adapter.name


def public_id(prefix: str, headers: Headers, own_id: str | None = None) -> str:
    """`prefix` and the client's own request id, from the header or the body, or a random one."""
    return f"{prefix}-{request_id(headers) or own_id or uuid.uuid4().hex}"
