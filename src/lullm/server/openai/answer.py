"""ChoicesAnswer: the answers of OpenAI's completions and chat, which differ in the form of their choices."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from lullm.server.error import ApiError
from lullm.server.openai.generation import Generation, Usage
from lullm.server.sse import DONE, EVENTS, encode, event
from lullm.types.outputs import RequestOutput


class ChoiceForm(Protocol):
    """The wire form of one generation's choices. `number`: the index of an output's prompt in the request."""

    object_name: str
    chunk_name: str

    def choices(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of a prompt's only output, in order."""
        ...

    def deltas(self, number: int, output: RequestOutput) -> Iterator[dict[str, Any]]:
        """The choices of one of a prompt's outputs, if they have new contents."""
        ...

    def opening(self) -> dict[str, Any]:
        """Fields of a stream's first chunk beside its choices."""
        ...

    def extra(self, output: RequestOutput) -> dict[str, Any]:
        """Fields of the whole answer beside its choices."""
        ...

    def usage(self, counted: Usage) -> Usage:
        """The usage in the form for the client."""
        ...


@dataclass(slots=True)
class ChoicesAnswer:
    """A generation's outputs as OpenAI's objects, whole or in chunks.

    Args:
        with_usage: a last chunk has the usage.
        with_running_usage: every chunk has the usage so far.
    """

    generation: Generation
    form: ChoiceForm
    with_usage: bool
    with_running_usage: bool = False
    media_type: str = EVENTS
    _begin: bytes = b""  # of each event; written once
    _end: bytes = b""
    _opening: dict[str, Any] = field(default_factory=dict)

    async def whole(self) -> list[bytes]:
        """The answer as pieces of JSON.

        Choices become JSON one by one: as Python's objects, log-probabilities take four times the bytes of their JSON.
        """
        choices: dict[int, bytes] = {}
        extra: dict[str, Any] = {}
        async with contextlib.aclosing(self.generation.last_outputs()) as outputs:
            async for number, output in outputs:
                for choice in self.form.choices(number, output):
                    if choices:  # thousands of choices take seconds, so other requests run in between
                        await asyncio.sleep(0)
                    choices[choice["index"]] = encode(choice)
                extra |= self.form.extra(output)
        head = encode(self.generation.head(self.form.object_name))
        tail = encode({"usage": self._usage()} | extra)
        pieces = [head[:-1], b',"choices":[']
        for index in sorted(choices):
            pieces += [choices[index], b","]
        return [*pieces[:-1], b"],", tail[1:]]

    def chunk(self, number: int, output: RequestOutput) -> bytes:
        """An event for each choice with new contents."""
        if not self._begin:
            self._begin = b"data: " + encode(self.generation.head(self.form.chunk_name))[:-1] + b',"choices":['
            self._opening = self.form.opening()
            self._end = _end(self._tail())
        elif self.with_running_usage:
            self._end = _end(self._tail())
        chunk = b""
        for choice in self.form.deltas(number, output):
            chunk += self._begin + encode(choice) + (_end(self._tail() | self._opening) if self._opening else self._end)
            self._opening = {}
        return chunk

    def end(self) -> bytes:
        """The usage if it is wanted, and the end mark."""
        if not self.with_usage:
            return DONE
        head = self.generation.head(self.form.chunk_name)
        return event({**head, "choices": [], "usage": self._usage()}) + DONE

    def failure(self, error: ApiError) -> bytes:
        """One error event, and no [DONE]."""
        return event(error.envelope())

    def _tail(self) -> dict[str, Any]:
        """The end of an event's JSON after its choices: the usage so far, or null if a last event has it."""
        if self.with_running_usage:
            return {"usage": self._usage()}
        return {"usage": None} if self.with_usage else {}

    def _usage(self) -> dict[str, Any]:
        return self.form.usage(self.generation.usage).as_dict()


def _end(fields: dict[str, Any]) -> bytes:
    """The end of a chunk's JSON after the choice."""
    return b"]," + encode(fields)[1:] + b"\n\n" if fields else b"]}\n\n"
