"""ReplyForm: how a model writes its thoughts and its calls of tools. Data, from which readers and grammars are made.

All texts are those of the chat template, blanks included. Readers accept any blanks in their place.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ThinkingForm:
    """Thoughts lie between two texts. `begins_inside`: the prompt always opens them, also without the first text."""

    open: str
    close: str
    begins_inside: bool = False


@dataclass(frozen=True, slots=True)
class ObjectBody:
    """A call is one JSON object, with the tool's name and its arguments under these keys."""

    name_key: str = "name"
    arguments_key: str = "arguments"


@dataclass(frozen=True, slots=True)
class TaggedValues:
    """Arguments one by one, each between tags: `open` key `name_close` value `close`. Strings have no quotes."""

    open: str
    name_close: str
    close: str


@dataclass(frozen=True, slots=True)
class KeywordValues:
    """Arguments as in a program's call, up to a closing bracket: key, `equals`, value, comma.

    `quote`: what stands around strings, without escapes; empty: strings are Python's, and so are all values.
    """

    equals: str
    quote: str = ""


@dataclass(frozen=True, slots=True)
class NamedBody:
    """A call is a name, `name_close`, and arguments: 'json' is one JSON object.

    `cut`: a name ends before this text (a number or an id follows).
    """

    name_close: str
    arguments: Literal["json"] | TaggedValues | KeywordValues = "json"
    cut: str = ""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Calls follow one another: `section_open` open body close `separator` open body close `section_close`.

    Args:
        is_bare: a call has no marker. It counts only at the beginning of a reply, and with the name of a known tool.
        has_short_ids: the template takes only ids of nine letters and digits.
    """

    open: str
    body: ObjectBody | NamedBody
    close: str
    section_open: str = ""
    section_close: str = ""
    separator: str = ""
    is_bare: bool = False
    has_short_ids: bool = False


@dataclass(frozen=True, slots=True)
class HeaderForm:
    """A reply is a list of messages with headers, which name a channel and maybe the tool that is called.

    A header lies between one of `starts` (or the prompt's end) and `end`. One of `stops` ends a message. `text_open`:
    the header of the answer. `next_open`: the text between messages.
    """

    starts: tuple[str, ...]
    end: str
    stops: tuple[str, ...]
    thinking_channel: str
    channel_mark: str
    recipient_mark: str
    text_open: str
    next_open: str


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How a model writes its replies. None: it writes no such part."""

    thinking: ThinkingForm | None = None
    calls: CallForm | None = None
    header: HeaderForm | None = None

    @property
    def texts(self) -> set[str]:
        """All texts of the form that may contain special tokens."""
        return set(_texts(self))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _texts(item)
    elif is_dataclass(value):
        for field in fields(value):
            yield from _texts(getattr(value, field.name))
