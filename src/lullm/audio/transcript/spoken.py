"""Single words and when they are said, from the tokens of a text."""

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

_OPENING = "\"'“¡¿([{-"
_CLOSING = "\"'.。,，!！?？:：”)]}、"
"""Marks that belong to the word behind them, and to the one before."""
_BROKEN = "\N{REPLACEMENT CHARACTER}"
_WITHOUT_SPACES = frozenset({"zh", "ja", "th", "lo", "my", "yue"})
"""Languages, by their codes, whose words stand beside each other: each character counts as one."""


@dataclass(frozen=True, slots=True)
class SpokenWord:
    """A word without the spaces around it, with the marks beside it, and its seconds of a sound."""

    text: str
    start_s: float
    end_s: float


class WordPart(NamedTuple):
    """A text, of the tokens from number `first` to `last`."""

    text: str
    first: int
    last: int

    def before(self, other: "WordPart") -> "WordPart":
        """Both as one."""
        return WordPart(self.text + other.text, self.first, other.last)


def has_spaces(language: str) -> bool:
    """Whether a language, by its code, has spaces between words."""
    return language not in _WITHOUT_SPACES


def word_parts(token_ids: Sequence[int], decode: Callable[[list[int]], str], splits_at_spaces: bool) -> list[WordPart]:
    """The words of a text, which together are the whole of it.

    Args:
        token_ids: of text alone.
        decode: to a text; of a part of a character, to U+FFFD.
        splits_at_spaces: words begin with spaces or are marks; otherwise every character is one.
    """
    parts = _characters(token_ids, decode)
    return _with_marks(_between_spaces(parts) if splits_at_spaces else parts)


def _characters(token_ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[WordPart]:
    """The shortest parts that hold no half characters, except for those that the whole text has, too."""
    whole = decode(list(token_ids))
    found, first, place = list[WordPart](), 0, 0
    for number in range(len(token_ids)):
        text = decode(list(token_ids[first : number + 1]))
        broken = text.find(_BROKEN)
        if broken < 0 or whole[place + broken : place + broken + 1] in ("", _BROKEN):
            found.append(WordPart(text, first, number))
            first, place = number + 1, place + len(text)
    return found


def _between_spaces(parts: Sequence[WordPart]) -> list[WordPart]:
    found: list[WordPart] = []
    for part in parts:
        if found and not part.text.startswith(" ") and part.text.strip() not in string.punctuation:
            found[-1] = found[-1].before(part)
        else:
            found.append(part)
    return found


def _with_marks(parts: Sequence[WordPart]) -> list[WordPart]:
    """Marks that stand alone become parts of their words."""
    opened: list[WordPart] = []  # from the last one to the first
    for part in reversed(parts):
        if opened and part.text.startswith(" ") and part.text.strip() in _OPENING:
            opened[-1] = part.before(opened[-1])
        else:
            opened.append(part)
    found: list[WordPart] = []
    for part in reversed(opened):
        if found and not found[-1].text.endswith(" ") and part.text in _CLOSING:
            found[-1] = found[-1].before(part)
        else:
            found.append(part)
    return found
