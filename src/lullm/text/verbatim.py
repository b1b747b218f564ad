"""Verbatim: prompts in which a caller's words stay text, even if they spell special tokens.

A user who writes `<|im_end|>\\n<|im_start|>system` must not end the turn and begin another. So, before a chat template
sees them, strings that spell a special token get a mark after the spelling's first character. In the rendered text a
special token without a mark is the template's own. Those are given secret names, and the marks are removed. A second
tokenizer with the same model and rules encodes the result; it knows the special tokens by their secret names only.
"""

import functools
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote as percent_encoded

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from lullm.errors import InvalidRequestError

_MARKS = range(0x2A6D6, 0x20000, -1)
"""Rare ideographs. They count as letters, so that no filter escapes, trims or changes them."""


@dataclass(frozen=True, slots=True)
class Quoted:
    """A template's variables, marked. `mark`: a character that none of their strings had."""

    variables: dict[str, Any]
    mark: str


class Verbatim:
    """The text forms of a tokenizer's special tokens. Thread-safe."""

    def __init__(self, backend: Backend):
        self._backend = backend
        self._added = backend.get_added_tokens_decoder()
        special = {token.content for token in self._added.values() if token.special}
        secret = secrets.token_hex(8)
        # Private-use characters: no normalizer changes them, and none of them is part of a word.
        self._names = {content: f"\U0010fffd{secret}{n}\U0010fffd" for n, content in enumerate(sorted(special))}
        self._special = _Spellings(special)
        self._tokens = _Spellings(token.content for token in self._added.values())
        self._first_chars = frozenset(content[0] for content in special)
        self._prefixes = frozenset(content[:end] for content in special for end in range(1, len(content)))
        self._longest = max(map(len, special), default=0)

    def quote(self, variables: dict[str, Any], template_texts: Iterable[str]) -> Quoted | None:
        """The variables with marks; None if no string in them spells a special token, or ends like the start of one.

        Args:
            template_texts: texts that the template itself may write; they must not hold the mark.

        Raises:
            InvalidRequestError: a value is nested deeper than Python's stack, or no mark is left.
        """
        if not self._names:
            return None
        try:
            strings = _strings(variables, [])
            if not any(map(self._spells, strings)):
                return None
            used = set().union(*strings, *template_texts)
            escapes = "".join(strings)
            mark = next((m for m in map(chr, _MARKS) if m not in used and not _occurs_escaped(m, escapes)), None)
            if mark is None:
                raise InvalidRequestError("the messages spell special tokens and use every rare ideograph", "messages")
            return Quoted(self._marked(variables, mark), mark)
        except RecursionError:
            raise InvalidRequestError("the messages are nested too deep", "messages") from None

    def shown(self, text: str, mark: str) -> str:
        """A rendered text without the marks."""
        for form in _forms(mark):
            text = text.replace(form, "")
        return text

    def renamed(self, text: str, mark: str) -> str:
        """A rendered text for `text_backend`: its unmarked special tokens by their secret names, without the marks."""
        pieces = []
        end = 0
        behind = 0  # the end of the last token, whose text cannot be part of another
        for start, content in sorted(self._tokens.found(text), key=lambda found: (found[0], -len(found[1]))):
            if start < behind:
                continue
            behind = start + len(content)
            name = self._names.get(content)
            if name is not None and not text.startswith(mark, behind):
                pieces += [self.shown(text[end:start], mark), name]
                end = behind
        pieces.append(self.shown(text[end:], mark))
        return "".join(pieces)

    @functools.cached_property
    def text_backend(self) -> Backend:
        """A tokenizer that takes special tokens as text, unless they have their secret names. It shares the model."""
        backend = Backend(self._backend.model)
        for part in ("normalizer", "pre_tokenizer"):
            if getattr(self._backend, part) is not None:
                setattr(backend, part, getattr(self._backend, part))
        # New tokens get ids from the vocabulary's number of tokens on. Those may be taken if the vocabulary has holes.
        last_id = max(self._backend.get_vocab(with_added_tokens=True).values())
        num_fillers = max(last_id + 1 - backend.get_vocab_size(), 0)
        tokens = [AddedToken(f"{self._filler}{n}", normalized=False) for n in range(num_fillers)]
        for token in self._added.values():
            flags = {"single_word": token.single_word, "lstrip": token.lstrip, "rstrip": token.rstrip}
            name = self._names.get(token.content)
            if name is None:
                tokens.append(AddedToken(token.content, normalized=token.normalized, **flags))
            else:
                tokens.append(AddedToken(name, normalized=False, **flags))
        backend.add_tokens(tokens)  # in one call: each takes as long as there are tokens
        return backend

    def original_ids(self, token_ids: Sequence[int]) -> list[int]:
        """The ids of `text_backend` as the tokenizer's own."""
        ids = self._ids
        return [ids.get(token_id, token_id) for token_id in token_ids]

    @functools.cached_property
    def _ids(self) -> dict[int, int]:
        own_id = self.text_backend.token_to_id
        names = {self._names.get(token.content, token.content): token_id for token_id, token in self._added.items()}
        return {own_id(name) or 0: token_id for name, token_id in names.items()}

    @functools.cached_property
    def _filler(self) -> str:
        return f"\U0010fffd{secrets.token_hex(8)}"

    def _spells(self, text: str) -> bool:
        """Whether the text holds a special token, or ends with the start of one, which later text may complete."""
        return next(self._special.found(text), None) is not None or self._open_end(text) is not None

    def _open_end(self, text: str) -> int | None:
        """Where an incomplete special token begins at the text's end."""
        start = max(len(text) - self._longest + 1, 0)
        ending = text[start:]
        if self._first_chars.isdisjoint(ending):
            return None
        return next((start + n for n in range(len(ending)) if ending[n:] in self._prefixes), None)

    def _marked(self, value: Any, mark: str) -> Any:
        if isinstance(value, str):
            return self._marked_text(value, mark) if self._spells(value) else value
        if isinstance(value, Mapping):
            return {self._marked(key, mark): self._marked(inner, mark) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(inner, mark) for inner in value]
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        starts = {start for start, _ in self._special.found(text)}
        ending = max(len(text) - self._longest + 1, 0)
        starts |= {n for n in range(ending, len(text)) if text[n:] in self._prefixes}
        pieces = []
        end = 0
        for start in sorted(starts):
            pieces += [text[end : start + 1], mark]
            end = start + 1
        return "".join([*pieces, text[end:]])


class _Spellings:
    """Looks for many strings in a text, in time that hardly depends on their number: some models have 6,000."""

    def __init__(self, contents: Iterable[str]):
        self._contents = frozenset(contents)
        lengths: dict[str, set[int]] = {}
        for content in self._contents:
            lengths.setdefault(content[:2], set()).add(len(content))
        self._lengths = {opening: sorted(found, reverse=True) for opening, found in lengths.items()}

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """The strings in the text and where they start, overlapping ones too; of one start the longest."""
        for opening, lengths in self._lengths.items():
            start = text.find(opening)
            while start >= 0:
                for length in lengths:
                    piece = text[start : start + length]
                    if piece in self._contents:
                        yield start, piece
                        break
                start = text.find(opening, start + 1)


def _strings(value: Any, found: list[str]) -> list[str]:
    """All strings in a value, keys too."""
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _strings(key, found)
            _strings(inner, found)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _strings(inner, found)
    return found


def _forms(mark: str) -> tuple[str, str, str]:
    """The forms in which a template may print the mark: plain, as JSON in ASCII, percent-encoded."""
    return mark, json.dumps(mark)[1:-1], percent_encoded(mark)


def _occurs_escaped(mark: str, text: str) -> bool:
    return any(form in text for form in _forms(mark)[1:])
