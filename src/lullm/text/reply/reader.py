"""The readers of replies, and which one a request's completions have."""

from collections.abc import Sequence
from dataclasses import dataclass

from lullm.text.reply.event import ReplyEvent, ReplyReader, Text
from lullm.text.reply.form_reader import FormReader
from lullm.types.request import GenerateRequest


def open_reader(request: GenerateRequest) -> ReplyReader:
    """A reader for one of the request's completions, each of which needs its own."""
    rules = request.reply
    if rules is None or not (rules.form.header or rules.tools or rules.form.thinking):
        return PlainReader()
    return FormReader(rules)


@dataclass(frozen=True, slots=True)
class PlainReader:
    """Reads everything as text."""

    num_thinking_tokens = 0

    def feed(self, text: str, token_ids: Sequence[int]) -> list[ReplyEvent]:
        """See `ReplyReader`."""
        return [Text(text)] if text else []

    def finish(self) -> list[ReplyEvent]:
        """See `ReplyReader`."""
        return []
