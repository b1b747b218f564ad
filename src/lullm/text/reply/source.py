"""Source: a text that is still coming. Readers are generators over it, which yield where they need more of it.

So one piece of code reads a form, whether the text comes whole or character by character.
"""

import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")
Waiting = Generator[None, None, T]
"""A reader that yields while it waits for text, and returns T."""

_BLANKS = re.compile(r"\s*")
_IN_STRING = re.compile(r'["\\]')
_STRUCTURE = re.compile(r"[^\s\w+\-.,:]")
_JSON_STARTS = frozenset('{["-0123456789tfn')


class NotInFormError(Exception):
    """The text does not have the expected form, or has ended within it."""


@dataclass(slots=True)
class Source:
    """The text so far. Readers have read everything before `at`. `is_closed`: no more will come."""

    text: str = ""
    at: int = 0
    is_closed: bool = False

    def forget(self) -> None:
        """Drop the text that was read. Earlier places become invalid."""
        self.text, self.at = self.text[self.at :], 0


def skip_blanks(text: str, at: int) -> int:
    """The place of the first character from `at` on that is not blank; the end if there is none."""
    match = _BLANKS.match(text, at)
    assert match is not None
    return match.end()


def held_from(text: str, at: int, marks: tuple[str, ...]) -> int:
    """Where a mark may begin at the text's end; the end if none may."""
    longest = max(map(len, marks), default=1) - 1
    for start in range(max(at, len(text) - longest), len(text)):
        ending = text[start:]
        if any(mark.startswith(ending) for mark in marks):
            return start
    return len(text)


def taken(source: Source, piece: str) -> Waiting[bool]:
    """Whether `piece` comes next, after any blanks; then it is read, with them."""
    while True:
        at = skip_blanks(source.text, source.at)
        if source.text.startswith(piece, at):
            source.at = at + len(piece)
            return True
        if source.is_closed or not piece.startswith(source.text[at:]):
            return False
        yield


def next_char(source: Source) -> Waiting[str]:
    """The next character that is not blank, which is not read; empty at the end of the text."""
    while True:
        source.at = skip_blanks(source.text, source.at)
        if source.at < len(source.text) or source.is_closed:
            return source.text[source.at : source.at + 1]
        yield


def expect(source: Source, *pieces: str) -> Waiting[None]:
    """Read the pieces, with blanks before each. Raises NotInFormError."""
    for piece in pieces:
        if not (yield from taken(source, piece)):
            raise NotInFormError


def until(source: Source, marks: tuple[str, ...], most: int) -> Waiting[tuple[str, str]]:
    """(the text before the first of the marks, the mark); both are read. Raises NotInFormError: not within `most`."""
    pattern = pattern_of(marks)
    while True:
        match = pattern.search(source.text, source.at)
        if match is not None and match.start() - source.at <= most:
            before = source.text[source.at : match.start()]
            source.at = match.end()
            return before, match.group()
        if match is not None or source.is_closed or len(source.text) - source.at > most + max(map(len, marks)):
            raise NotInFormError
        yield


def pattern_of(marks: tuple[str, ...]) -> re.Pattern[str]:
    """Finds any of the marks, the longest of those that begin at the same place."""
    return re.compile("|".join(map(re.escape, sorted(marks, key=len, reverse=True))) or r"(?!)")


def json_value(source: Source, take: Callable[[str], None]) -> Waiting[None]:
    """Read one JSON value; passes its pieces to `take` as they come. Raises NotInFormError."""
    yield from next_char(source)
    scanner = _ValueScanner()
    while True:
        end, is_end = scanner.scan(source.text, source.at)
        if end > source.at:
            take(source.text[source.at : end])
            source.at = end
        if is_end:
            return
        if source.is_closed:
            if scanner.is_scalar:
                return
            raise NotInFormError
        yield


class _ValueScanner:
    """Finds the end of one JSON value, looking at each character once: it counts brackets, and knows strings.

    Outside of strings a character that JSON does not have is an error, so that other text is recognised early.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_scalar = False
        self._is_begun = False

    def scan(self, text: str, at: int) -> tuple[int, bool]:
        """(end of the value's part in `text`, whether the value ends there). Raises NotInFormError."""
        if not self._is_begun and at < len(text):
            if text[at] not in _JSON_STARTS:
                raise NotInFormError
            self._is_begun, self.is_scalar = True, text[at] not in '{["'
        while at < len(text):
            if self.is_scalar:
                if text[at] in ",}]" or text[at].isspace():
                    return at, True
                at += 1
            else:
                at = self._string(text, at) if self._in_string else self._structure(text, at)
                if self._is_begun and not self._depth and not self._in_string:
                    return at, True
        return at, False

    def _string(self, text: str, at: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return at + 1
        match = _IN_STRING.search(text, at)
        if match is None:
            return len(text)
        self._is_escaped = match.group() == "\\"
        self._in_string = self._is_escaped
        return match.end()

    def _structure(self, text: str, at: int) -> int:
        match = _STRUCTURE.search(text, at)
        if match is None:
            return len(text)
        if match.group() == '"':
            self._in_string = True
        elif match.group() in "{[":
            self._depth += 1
        elif match.group() in "}]":
            self._depth -= 1
        else:
            raise NotInFormError
        return match.end()
