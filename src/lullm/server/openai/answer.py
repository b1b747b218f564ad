"""ChoicesAnswer: the answers of OpenAI's completions and chat, whose choices have a form each."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from lullm.server.error import ApiError
from lullm.server.openai.generation import Generation, Usage
from lullm.server.sse import DONE, EVENTS, encode, event
from lullm.types.outputs import RequestOutput


class ChoiceForm(Protocol):
    """The wire form of one generation's choices. `number`: which of the request's prompts an output belongs to."""

    object_name: str
    chunk_name: str

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of a prompt's only output, in order."""
        ...

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of one of a prompt's outputs, as far as they say something new."""
        ...

    def opening(self) -> dict[str, Any]:
        """Fields of a stream's first chunk beside its choices."""
        ...

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        """Fields of the whole answer beside its choices."""
        ...

    def usage(self, counted: Usage) -> Usage:
        """What was counted, as the client shall see it."""
        ...


@dataclass(frozen=True, slots=True)
class ChoicesAnswer:
    """A generation's outputs as OpenAI's objects, whole or in chunks.

    Args:
        with_usage: a last chunk has the usage. with_running_usage: every chunk has it, as far as it goes.
    """

    generation: Generation
    form: ChoiceForm
    with_usage: bool
    with_running_usage: bool = False
    media_type: str = EVENTS

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
        begin = b"data: " + encode(head)[:-1] + b',"choices":['
        opening = self.form.opening()
        tail: dict[str, Any] = {"usage": None} if self.with_usage else {}
        end = _end(tail)
        async with contextlib.aclosing(self.generation.outputs()) as outputs:
            async for number, output in outputs:
                if self.with_running_usage:
                    end = _end(tail := {"usage": self._usage()})
                for choice in self.form.deltas(number, output):
                    yield begin + encode(choice) + (_end(tail | opening) if opening else end)
                    opening = {}
        if self.with_usage:
            yield event({**head, "choices": [], "usage": self._usage()})
        yield DONE

    def failure(self, error: ApiError) -> bytes:
        """One error event, and no [DONE]."""
        return event(error.envelope())

    def _usage(self) -> dict[str, Any]:
        return self.form.usage(self.generation.usage).as_dict()


def _end(fields: dict[str, Any]) -> bytes:
    """What stands behind the choice in a chunk."""
    return b"]," + encode(fields)[1:] + b"\n\n" if fields else b"]}\n\n"
