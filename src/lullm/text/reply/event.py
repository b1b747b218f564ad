"""What a reply consists of: pieces of text and of thinking, and calls of tools."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer itself. Never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class Thinking:
    """A piece of what the model thinks before it answers. Never empty."""

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
    """Reads the reply of one completion; this reader takes everything for text.

    However the text is cut into deltas, the events join to the same reply.
    """

    @property
    def num_thinking_tokens(self) -> int:
        """How many of the tokens so far the model has thought with."""
        return 0

    def feed(self, text: str, token_ids: Sequence[int]) -> list[ReplyEvent]:
        """The events of a delta, or of the whole. What may be the start of a marker is held back."""
        return [Text(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        """The events of what was held back; a call that is open ends. The reader is of no use then."""
        return []
