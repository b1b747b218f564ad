"""WholeReply: the events of a reply, joined."""

from collections.abc import Iterable
from dataclasses import dataclass

from lullm.text.reply.event import CallArguments, CallStart, ReplyEvent, Text, Thinking


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. `arguments`: the text of a JSON object, as far as the model has written it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class WholeReply:
    """A reply, or the joined events of one delta."""

    text: str
    thinking: str
    calls: tuple[ToolCall, ...]


def joined(events: Iterable[ReplyEvent]) -> WholeReply:
    """The reply of these events: all of them, or at least whole calls."""
    text, thinking = [], []
    starts: list[CallStart] = []
    arguments: dict[int, list[str]] = {}
    for event in events:
        match event:
            case Text(piece):
                text.append(piece)
            case Thinking(piece):
                thinking.append(piece)
            case CallStart(index):
                starts.append(event)
                arguments[index] = []
            case CallArguments(index, piece):
                arguments[index].append(piece)
    calls = tuple(ToolCall(start.id, start.name, "".join(arguments[start.index])) for start in starts)
    return WholeReply("".join(text), "".join(thinking), calls)
