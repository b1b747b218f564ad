"""Events of a reply: pieces of text and of thinking, and calls of tools."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer itself. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of the model's thoughts before its answer. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins. `index`: 0, 1, ... in a reply; `id`: unique, of the form 'call_...'; `name`: of the tool."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments; all pieces together are the text of a JSON object."""

    index: int
    piece: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """A call is complete. Calls follow each other: one ends before the next begins."""

    index: int


ReplyEvent = Text | Thinking | CallStart | CallArguments | CallEnd


class ReplyReader:
    """Reads the reply of one completion; this reader treats everything as text.

    The events join to the same reply for any split of the text into deltas.
    """

    @property
    def num_thinking_tokens(self) -> int:
        """How many of the tokens so far belong to thoughts."""
        return 0

    def feed(self, text: str, token_ids: Sequence[int]) -> list[ReplyEvent]:
        """The events of a delta, or of the whole text. A possible start of a marker is held back."""
        return [Text(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        """The events of held-back text; an open call ends. The reader cannot be used afterwards."""
        return []
