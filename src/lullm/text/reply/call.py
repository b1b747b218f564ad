"""Call: one call of a tool while it is read, and readers for each form of arguments."""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from lullm.text.reply.event import CallArguments, CallEnd, CallStart, ReplyEvent
from lullm.text.reply.source import (
    NotInFormError,
    Source,
    Waiting,
    expect,
    held_from,
    json_value,
    next_char,
    pattern_of,
    taken,
    until,
)
from lullm.types.reply.form import KeywordValues, ObjectBody, TaggedValues

_MAX_KEY = 256
_SILENT_KEYS = ("id", "type", "index")
_BARE_KEY = re.compile(r"([{,]\s*)([\w\-.$]+)\s*:")
_JSON_TYPES = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}


class Call:
    """Turns a call's parts into events. Arguments that come before the name wait for it.

    Args:
        check: raises NotInFormError if a text cannot be a tool's name.
    """

    def __init__(self, index: int, call_id: str, events: list[ReplyEvent], check: Callable[[str], None]):
        self._index, self._id, self._events, self._check = index, call_id, events, check
        self._early: list[str] = []
        self._has_arguments = False
        self.is_started = False

    def start(self, name: object) -> None:
        """The tool's name is known. Raises NotInFormError: it cannot be one."""
        if not isinstance(name, str) or self.is_started or name != _encodable(name):
            raise NotInFormError
        self._check(name)
        self.is_started = True
        self._events.append(CallStart(self._index, self._id, name))
        for piece in self._early:
            self.add(piece)

    def add(self, piece: str) -> None:
        """A piece of the arguments' JSON."""
        if not self.is_started:
            self._early.append(piece)
        elif piece:
            self._has_arguments = True
            self._events.append(CallArguments(self._index, _encodable(piece)))

    def end(self) -> None:
        """The call is complete, or cut."""
        if not self._has_arguments:
            self.add("{}")
        self._events.append(CallEnd(self._index))


def _encodable(text: str) -> str:
    """The text with question marks for surrogates that stand alone: `"\\ud800"` is JSON, but has no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def read_object(source: Source, body: ObjectBody, call: Call) -> Waiting[None]:
    """Read a call that is one JSON object. Other keys are ignored."""
    yield from expect(source, "{")
    while not (yield from taken(source, "}")):
        key = yield from _collected(source)
        if not call.is_started and key not in (body.name_key, body.arguments_key, *_SILENT_KEYS):
            raise NotInFormError  # at once, so that other JSON is not held back to its end
        yield from expect(source, ":")
        if key == body.arguments_key and (yield from next_char(source)) == "{":
            yield from json_value(source, call.add)
        else:
            value = yield from _collected(source)
            if key == body.name_key:
                call.start(value)
            elif key == body.arguments_key and isinstance(value, str):  # JSON in JSON
                call.add(value)
        if not (yield from taken(source, ",")):
            yield from expect(source, "}")
            break
    if not call.is_started:
        raise NotInFormError


def read_json(source: Source, close: str, call: Call) -> Waiting[None]:
    """Read arguments as one JSON object. Any other text up to `close` is passed on unchanged."""
    if (yield from next_char(source)) == "{":
        yield from json_value(source, call.add)
    elif close and source.text:
        before, mark = yield from until(source, (close,), len(source.text) + _MAX_KEY)
        source.at -= len(mark)
        call.add(before.strip())


def read_tagged(source: Source, form: TaggedValues, close: str, schema: Mapping[str, Any], call: Call) -> Waiting[None]:
    """Read arguments between tags. The schema tells which values are strings. `close`: the text after the last one."""
    opening, key_end, value_end = form.open.strip(), form.name_close.split(), form.close.strip()
    properties = schema.get("properties")
    separator = "{"
    while True:
        if not (yield from _upto(source, opening, close)):
            break
        try:
            key, _ = yield from until(source, (key_end[0],), _MAX_KEY)
            yield from expect(source, *key_end[1:])
        except NotInFormError:
            break
        declared = properties.get(key.strip()) if isinstance(properties, Mapping) else None
        call.add(f"{separator}{json.dumps(key.strip(), ensure_ascii=False)}: ")
        separator = ", "
        yield from _tagged_value(source, form, value_end, _types_of(declared), call)
    call.add("}" if separator != "{" else "{}")


def _upto(source: Source, opening: str, close: str) -> Waiting[bool]:
    """Skip to `opening` or `close`, and over `opening`. Returns whether `opening` came first."""
    pattern = pattern_of((opening, close) if close else (opening,))
    while (match := pattern.search(source.text, source.at)) is None:
        if source.is_closed:
            return False
        yield
    is_opening = match.group() == opening
    source.at = match.end() if is_opening else match.start()
    return is_opening


def _tagged_value(
    source: Source, form: TaggedValues, value_end: str, types: frozenset[str], call: Call
) -> Waiting[None]:
    """Read a value up to its tag. Text that is surely a string is passed on as it comes."""
    before = form.name_close[len(form.name_close.rstrip()) :]
    behind = form.close[: len(form.close) - len(form.close.lstrip())]
    streams = types == {"string"}
    pieces: list[str] = []
    if streams:
        call.add('"')
    is_first, is_end = True, False
    while not is_end:
        text = source.text
        if is_first and before and not source.is_closed and before.startswith(text[source.at :]):
            yield
            continue
        if is_first and before and text.startswith(before, source.at):
            source.at += len(before)
        is_first = False
        found = text.find(value_end, source.at)
        is_end = found >= 0 or source.is_closed
        end = found if found >= 0 else len(text)
        if is_end:
            shown = end - len(behind) if behind and text.endswith(behind, source.at, end) else end
        else:
            shown = held_from(text, source.at, (behind + value_end, value_end))
        piece = text[source.at : max(shown, source.at)]
        if streams:
            call.add(json.dumps(piece, ensure_ascii=False)[1:-1])
        else:
            pieces.append(piece)
        source.at = end + len(value_end) if found >= 0 else (len(text) if is_end else shown)
        if not is_end:
            yield
    call.add('"' if streams else json.dumps(_typed("".join(pieces), types), ensure_ascii=False))


def _types_of(declared: object) -> frozenset[str]:
    """The JSON types that a schema allows; empty: unknown."""
    if not isinstance(declared, Mapping):
        return frozenset()
    named = declared.get("type")
    types = {named} if isinstance(named, str) else {one for one in named or () if isinstance(one, str)}
    for several in ("anyOf", "oneOf"):
        for each in declared.get(several) or () if isinstance(declared.get(several), list) else ():
            types |= _types_of(each)
    if not types and isinstance(declared.get("enum"), list):
        types = {_JSON_TYPES.get(type(value), "null") for value in declared["enum"]}
    return frozenset(types)


def _typed(text: str, types: frozenset[str]) -> Any:
    """A value without quotes, read by the types that it may have."""
    value = parsed(text)
    if value is None and text.strip() not in ("null", "None"):
        return text
    name = _JSON_TYPES.get(type(value), "null")
    if not types:  # undeclared: a value that could be a string is one
        return value if name in ("object", "array") else text
    if name in types or (name == "integer" and "number" in types):
        return value
    return text if name != "string" or "string" in types else value


def parsed(text: str) -> Any:
    """A value as JSON, or as Python writes it; None if it is neither."""
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        pass
    try:
        value = ast.literal_eval(text.strip())
        json.dumps(value, allow_nan=False)
        return value
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _finite(text: str) -> float:
    """Raises ValueError: JSON has no such number."""
    if not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def read_keywords(source: Source, form: KeywordValues, close: str, call: Call) -> Waiting[None]:
    """Read arguments as in a program's call, up to the bracket that `close` begins with."""
    bracket = close[:1]
    separator = "{"
    while (yield from next_char(source)) not in (bracket, ""):
        try:
            key, _ = yield from until(source, (form.equals,), _MAX_KEY)
        except NotInFormError:
            break
        text = yield from _bracketed(source, form.quote, bracket)
        value = _unquoted(text, form.quote) if form.quote else parsed(text)
        if value is None and text.strip() not in ("null", "None"):
            value = text.strip()
        name = json.dumps(key.strip().strip("\"'"), ensure_ascii=False)
        call.add(f"{separator}{name}: {json.dumps(value, ensure_ascii=False)}")
        separator = ", "
        if not (yield from taken(source, ",")):
            break
    call.add("}" if separator != "{" else "{}")


def _bracketed(source: Source, quote: str, bracket: str) -> Waiting[str]:
    """A value up to a comma or closing bracket outside of brackets and quotes, which is not read."""
    quotes = (quote,) if quote else ('"', "'")
    pattern = pattern_of((*quotes, "\\", *"()[]{},"))
    start, at, depth, inside = source.at, source.at, 0, ""
    while True:
        match = pattern.search(source.text, at)
        held = held_from(source.text, at, quotes)
        if match is None or (held <= match.start() and not source.is_closed):
            if source.is_closed:
                source.at = len(source.text)
                return source.text[start:]
            at = held if match is None else at
            yield
            continue
        mark, at = match.group(), match.end()
        if inside:
            if mark == "\\" and not quote:
                while at >= len(source.text) and not source.is_closed:
                    yield
                at += 1
            elif mark == inside:
                inside = ""
        elif mark in quotes:
            inside = mark
        elif depth == 0 and mark in (",", bracket):
            source.at = match.start()
            return source.text[start : match.start()]
        elif mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1


def _unquoted(text: str, quote: str) -> Any:
    """A value whose strings stand between `quote`s and whose keys have none."""
    pieces = text.strip().split(quote)
    for n, piece in enumerate(pieces):
        pieces[n] = json.dumps(piece) if n % 2 else _BARE_KEY.sub(r'\1"\2":', piece)
    return parsed("".join(pieces))


def _collected(source: Source) -> Waiting[Any]:
    """One JSON value. Raises NotInFormError."""
    pieces: list[str] = []
    yield from json_value(source, pieces.append)
    try:
        return json.loads("".join(pieces))
    except (ValueError, RecursionError):
        raise NotInFormError from None
