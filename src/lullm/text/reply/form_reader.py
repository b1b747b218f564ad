"""FormReader: one reader for every `ReplyForm`, whether a reply comes whole or in deltas."""

import contextlib
import re
import secrets
import string
from collections.abc import Sequence

from lullm.text.reply.call import Call, read_json, read_keywords, read_object, read_tagged
from lullm.text.reply.event import CallArguments, ReplyEvent, ReplyReader, Text, Thinking
from lullm.text.reply.source import (
    NotInFormError,
    Source,
    Waiting,
    expect,
    held_from,
    next_char,
    pattern_of,
    skip_blanks,
    taken,
    until,
)
from lullm.text.reply.thinking import ThinkingCounter
from lullm.types.reply.form import CallForm, KeywordValues, NamedBody, ObjectBody, TaggedValues
from lullm.types.reply.rules import ReplyRules

_MAX_NAME = 256
_MAX_HEADER = 400
_NAME = re.compile(r"[^\s<>{}()\[\]\"'`|]+")
_SHORTEST_MARK = 5
"""A shorter piece of a call's opening, such as a bracket, is ambiguous without the text before it."""
_ALPHABET = string.ascii_letters + string.digits


class FormReader(ReplyReader):
    """Reads a reply by its form. Text that begins like a call and is none stays text."""

    def __init__(self, rules: ReplyRules):
        form = rules.form
        self._rules = rules
        self._calls = form.calls if rules.tools else None
        self._anchors = _anchors(self._calls) if self._calls and not self._calls.is_bare else {}
        self._schemas = {tool.name: tool.parameters for tool in rules.tools}
        self._counter = ThinkingCounter(rules.thinking) if rules.thinking else None
        self._source = Source()
        self._events: list[ReplyEvent] = []
        self._num_calls = 0
        self._has_text = False
        self._left_out = ""  # blanks before the last mark
        self._reading = self._messages() if form.header else self._reply()

    @property
    def num_thinking_tokens(self) -> int:
        return self._counter.num_tokens if self._counter else 0

    def feed(self, text: str, token_ids: Sequence[int]) -> list[ReplyEvent]:
        if self._counter:
            self._counter.feed(token_ids)
        self._source.text += text
        return self._read_on()

    def finish(self) -> list[ReplyEvent]:
        self._source.is_closed = True
        return self._read_on()

    def _read_on(self) -> list[ReplyEvent]:
        next(self._reading, None)
        events: list[ReplyEvent] = []
        for event in self._events:
            is_extra = not self._rules.calls.is_parallel and getattr(event, "index", 0) > 0
            if events and (longer := _together(events[-1], event)):
                events[-1] = longer
            elif not is_extra:
                events.append(event)
        self._events.clear()
        return events

    def _reply(self) -> Waiting[None]:
        """A reply in which marks begin thoughts and calls."""
        thinking, calls = self._rules.form.thinking, self._calls
        is_behind_mark = False
        if thinking and (thinking.begins_inside or (self._rules.thinking and self._rules.thinking.begins_inside)):
            yield from taken(self._source, thinking.open.strip())
            yield from self._plain(Thinking, (thinking.close.strip(),), True)
            is_behind_mark = True
        if calls and calls.is_bare:
            yield from self._bare_calls(calls)
            is_behind_mark = is_behind_mark or self._num_calls > 0
        while not self._is_over:
            # After text, the mark of a thought is part of the text.
            if thinking and not self._has_text and (yield from taken(self._source, thinking.open.strip())):
                yield from self._plain(Thinking, (thinking.close.strip(),), True)
                is_behind_mark = True
            mark = yield from self._plain(Text, tuple(self._anchors), is_behind_mark)
            if mark:
                assert calls is not None
                is_behind_mark = yield from self._calls_behind(calls, mark)

    def _messages(self) -> Waiting[None]:
        """A reply of messages with headers."""
        header = self._rules.form.header
        assert header is not None
        marks = (*header.starts, *header.stops)
        while not self._is_over:
            start = self._source.at
            try:
                head, _ = yield from until(self._source, (header.end,), _MAX_HEADER)
            except NotInFormError:
                self._source.at = start
                yield from self._plain(Text, (), False)
                break
            recipient = re.search(re.escape(header.recipient_mark) + r"([^\s<]+)", head)
            channel = re.search(re.escape(header.channel_mark) + r"\s*(\w+)", head)
            if recipient and self._calls:
                yield from self._addressed_call(recipient.group(1), header.stops[0])
            is_thinking = channel is not None and channel.group(1) == header.thinking_channel
            mark = yield from self._plain(Thinking if is_thinking else Text, marks, False)
            if mark in header.starts:
                self._source.at -= len(mark)
            elif mark:
                yield from next_char(self._source)

    def _addressed_call(self, name: str, stop: str) -> Waiting[None]:
        """A message to a tool, which is its arguments."""
        call = self._new_call()
        with contextlib.suppress(NotInFormError):
            call.start(name)
            yield from read_json(self._source, stop, call)
        if call.is_started:
            call.end()
            self._num_calls += 1

    @property
    def _is_over(self) -> bool:
        return self._source.is_closed and self._source.at >= len(self._source.text)

    def _plain(self, kind: type[Text] | type[Thinking], marks: tuple[str, ...], strips: bool) -> Waiting[str]:
        """Read text up to one of the marks, and the mark, which is returned; empty: the text has ended.

        Blanks before a mark are dropped, and with `strips` also those at the beginning.
        """
        source, pattern = self._source, pattern_of(marks)
        while True:
            source.forget()
            if strips:
                source.at = skip_blanks(source.text, 0)
            match = pattern.search(source.text, source.at)
            end = match.start() if match else len(source.text)
            if match is None and not source.is_closed:
                end = held_from(source.text, source.at, marks)
            plain = source.text[source.at : end]
            shown = plain.rstrip() if match or (marks and not source.is_closed) else plain
            if shown:
                self._has_text = self._has_text or kind is Text
                self._events.append(kind(shown))
                strips = False
            source.at = match.end() if match else source.at + len(shown)
            self._left_out = plain[len(shown) :]
            if match or source.is_closed:
                return match.group() if match else ""
            yield

    def _calls_behind(self, form: CallForm, anchor: str) -> Waiting[bool]:
        """Read the calls after an anchor. False: there are none, and the anchor was text."""
        start, before, left_out = self._source.at, self._num_calls, self._left_out
        try:
            yield from expect(self._source, *self._anchors[anchor])
            is_call = yield from self._one_call(form)
        except NotInFormError:
            is_call = False
        if not is_call:
            # Search the next mark after this one, but not at the text's end, where that would be repeated again and
            # again.
            end = len(self._source.text) if self._source.is_closed else start
            self._events.append(Text(left_out + self._source.text[start - len(anchor) : end]))
            self._source.at, self._has_text = end, True
            return False
        while form.section_close and (yield from self._next_in_section(form)):
            if not (yield from self._one_call(form)):
                break
        return self._num_calls > before

    def _next_in_section(self, form: CallForm) -> Waiting[bool]:
        """Whether another call of a section begins. Reads the text before its body, or else the section's end."""
        yield from taken(self._source, form.separator.strip() or ",")
        opening = form.open.split()
        try:
            if opening:
                yield from expect(self._source, *opening)
                return True
            closing = form.section_close.split()
            if (yield from next_char(self._source)) not in (closing[0][0], ""):
                return True
        except NotInFormError:
            pass
        for piece in form.section_close.split():
            yield from taken(self._source, piece)
        return False

    def _bare_calls(self, form: CallForm) -> Waiting[None]:
        """Read calls without a mark, with which a reply may begin."""
        while True:
            start = self._source.at
            if not (yield from next_char(self._source)):
                break
            try:
                for piece in form.section_open.split():
                    yield from taken(self._source, piece)
                if not (yield from self._one_call(form)):
                    raise NotInFormError
            except NotInFormError:
                self._source.at = start
                break
            yield from taken(self._source, form.separator.strip() or ";")
        if form.section_close and self._num_calls:
            yield from taken(self._source, form.section_close.strip())

    def _one_call(self, form: CallForm) -> Waiting[bool]:
        """Read a call's body and its closing mark. False: it is no call, and caused no events."""
        call, start = self._new_call(form.is_bare), self._source.at
        try:
            if isinstance(form.body, ObjectBody):
                yield from read_object(self._source, form.body, call)
            else:
                yield from self._named_call(form.body, form.close, call)
        except NotInFormError:
            if not call.is_started:
                self._source.at = start
                return False
        call.end()
        self._num_calls += 1
        for piece in form.close.split():
            if not (yield from taken(self._source, piece)):
                break
        return True

    def _named_call(self, body: NamedBody, close: str, call: Call) -> Waiting[None]:
        """A name, and arguments behind it."""
        arguments, source = body.arguments, self._source
        behind_name, closing = body.name_close.split(), (close.split() or [""])[0]
        ends = [behind_name[0] if behind_name else "\n", *([closing] if closing else [])]
        if isinstance(arguments, TaggedValues):
            ends.append(arguments.open.strip())
        yield from next_char(source)
        name, mark = yield from until(source, tuple(ends), _MAX_NAME)
        name = name.strip()
        call.start(name.partition(body.cut)[0].strip() if body.cut else name)
        if mark != ends[0]:  # no arguments, or the first one already
            source.at -= len(mark)
        else:
            yield from expect(source, *behind_name[1:])
        if isinstance(arguments, TaggedValues):
            yield from read_tagged(source, arguments, closing, self._schemas.get(name, {}), call)
        elif isinstance(arguments, KeywordValues):
            yield from read_keywords(source, arguments, close, call)
        else:
            yield from read_json(source, closing, call)

    def _new_call(self, is_bare: bool = False) -> Call:
        def check(name: str) -> None:
            if not _NAME.fullmatch(name) or len(name) > _MAX_NAME or (is_bare and name not in self._schemas):
                raise NotInFormError

        return Call(self._num_calls, self._new_id(), self._events, check)

    def _new_id(self) -> str:
        if self._calls is not None and self._calls.has_short_ids:
            return "".join(secrets.choice(_ALPHABET) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"


def _together(one: ReplyEvent, other: ReplyEvent) -> ReplyEvent | None:
    """Two pieces of the same kind as one; None: they differ."""
    match one, other:
        case (Text(text), Text(more)):
            return Text(text + more)
        case (Thinking(text), Thinking(more)):
            return Thinking(text + more)
        case (CallArguments(index, text), CallArguments(same, more)) if index == same:
            return CallArguments(index, text + more)
    return None


def _anchors(form: CallForm) -> dict[str, tuple[str, ...]]:
    """Marks that begin calls in a text -> the text that must follow each before the first call's body.

    Models leave out the first of several marks: `<function=` without `<tool_call>` is a call.
    """
    section, opening = form.section_open.split(), form.open.split()
    pieces = section + opening
    anchors = {}
    for n, piece in enumerate(pieces):
        if n == 0 or len(piece) >= _SHORTEST_MARK:
            anchors[piece] = tuple(pieces[n + 1 :])
    return anchors
