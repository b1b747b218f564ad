"""Asker: has an engine answer the questions of a course about a sound (`audio.transcript.course`)."""

from typing import Any, TypeVar

from lullm.audio.transcript.course import Course, Question
from lullm.server.context import ServerContext
from lullm.server.gate.request_log import RequestRecord, log_prompts
from lullm.server.openai.generation import Generation, Usage, prepare_all
from lullm.server.openai.schema import CompletionBody
from lullm.types.outputs import RequestOutput
from lullm.types.request import GenerateRequest

T = TypeVar("T")


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
        """What the course finds. Cancelling the call aborts what runs.

        Raises as `Generation.run` and `prepare_all` do.
        """
        try:
            questions = next(course)
            while True:
                questions = course.send(await self._answers(questions))
        except StopIteration as end:
            found: T = end.value
            return found

    def usage(self) -> dict[str, Any]:
        """The tokens so far."""
        return self._usage.as_dict()

    async def _answers(self, questions: list[Question]) -> list[RequestOutput]:
        requests: list[GenerateRequest] = []
        for prompt, params in questions:
            requests += await prepare_all(self._context.engine, self._id, [prompt], params, self._priority)
        generation = Generation(self._context, self._id, CompletionBody(prompt=[0]), requests, self._keep_alive)
        if self._record is not None:
            generation.record = self._record
            log_prompts(requests, self._context.options)
        outputs = {number: output async for number, output in generation.last_outputs()}
        self._usage.prompt_tokens += generation.usage.prompt_tokens
        self._usage.completion_tokens += generation.usage.completion_tokens
        self._usage.cached_tokens += generation.usage.cached_tokens
        return [outputs[number] for number in range(len(questions))]
