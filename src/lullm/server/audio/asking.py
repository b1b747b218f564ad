"""Asker: has an engine answer the questions of a course about a sound (`audio.transcript.question`)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from lullm.audio.transcript.question import Course, Question
from lullm.server.context import ServerContext
from lullm.server.gate.request_log import RequestRecord, log_prompts
from lullm.server.openai.generation import Generation, Usage, prepare_all
from lullm.server.openai.schema import CompletionBody
from lullm.server.pooling.vectors import Vectors
from lullm.types.pooling.outputs import EngineOutput
from lullm.types.request import GenerateRequest

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """The result of a course."""

    value: T


class Asker:
    """Answers the questions of one HTTP request.

    Args:
        record: of the request, for the log; None: the questions are not told there.
        keep_alive: see `EngineClient.stream`.
    """

    def __init__(
        self,
        context: ServerContext,
        answer_id: str,
        priority: int,
        keep_alive: float | None,
        record: RequestRecord | None = None,
    ):
        self._context, self._id, self._priority, self._keep_alive = context, answer_id, priority, keep_alive
        self._record = record
        self._usage = Usage()
        if record is not None:
            record.id, record.usage = answer_id, self.usage

    async def result(self, course: Course[T]) -> T:
        """Run the course and return its result. Cancelling the call aborts its running requests.

        Raises as `Generation.run` and `prepare_all` do.
        """
        answers: Sequence[EngineOutput] | None = None
        while True:
            # On a thread: the path through what a text attends to takes up to a second.
            found = await asyncio.to_thread(_next_questions, course, answers)
            if isinstance(found, _Found):
                return found.value
            answers = await self._answers(found)

    def usage(self) -> dict[str, Any]:
        """The tokens so far."""
        return self._usage.as_dict()

    async def _answers(self, questions: list[Question]) -> Sequence[EngineOutput]:
        requests: list[GenerateRequest] = []
        for prompt, params in questions:
            requests += await prepare_all(self._context.engine, self._id, [prompt], params, self._priority)
        if requests[0].pooling is not None:
            return await self._pooled(requests)
        generation = Generation(self._context, self._id, CompletionBody(prompt=[0]), requests, self._keep_alive)
        if self._record is not None:
            generation.record = self._record
            log_prompts(requests, self._context.options)
        outputs = {number: output async for number, output in generation.last_outputs()}
        self._usage.prompt_tokens += generation.usage.prompt_tokens
        self._usage.completion_tokens += generation.usage.completion_tokens
        self._usage.cached_tokens += generation.usage.cached_tokens
        return [outputs[number] for number in range(len(questions))]

    async def _pooled(self, requests: list[GenerateRequest]) -> Sequence[EngineOutput]:
        vectors = Vectors(self._context, self._id, requests, self._keep_alive)
        if self._record is not None:
            vectors.record = self._record
            log_prompts(requests, self._context.options)
        outputs = await vectors.all()
        self._usage.prompt_tokens += vectors.usage()["prompt_tokens"]
        self._usage.cached_tokens += vectors.cached_tokens
        return outputs


def _next_questions(course: Course[T], answers: Sequence[EngineOutput] | None) -> list[Question] | _Found[T]:
    """The next questions of a course, or its result. `answers`: to the last ones; None: it begins."""
    try:
        return next(course) if answers is None else course.send(list(answers))
    except StopIteration as end:
        return _Found(end.value)
