"""GrammarWriter: rules of one grammar, in llguidance's Lark.

llguidance takes every added token as a token of its own, never as its text. So marks are written as tokens where the
tokenizer has them, and free text holds no such token.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

ANY = "/(?s:.*)/"
BLANKS = r"[ \n\t]{1,20}"
"""Blanks of JSON, and after thoughts. Without a bound a model that prefers blanks writes only blanks."""


class GrammarWriter:
    """Collects rules.

    Args:
        added: the text of each added token -> its id. end_token_ids: they end the reply, and no rule writes them.
    """

    def __init__(self, added: Mapping[str, int], end_token_ids: Collection[int]):
        self._added = added
        self._ends = frozenset(end_token_ids)
        names = sorted(filter(None, added), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self.lines: list[str] = []

    def rule(self, body: str) -> str:
        """The name of a new rule."""
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {body.strip() or _quoted('')}")
        return name

    def literal(self, text: str) -> str:
        """A text as its strings and tokens."""
        pieces, at = [], 0
        for match in self._tokens.finditer(text):
            pieces += [_quoted(text[at : match.start()])] if match.start() > at else []
            token_id = self._added[match.group()]
            pieces += [] if token_id in self._ends else [f"<[{token_id}]>"]
            at = match.end()
        return " ".join([*pieces, *([_quoted(text[at:])] if at < len(text) else [])])

    def one_of(self, texts: list[str]) -> str:
        """One of several texts."""
        return f"({' | '.join(map(self.literal, texts))})"

    def until(self, mark: str) -> str:
        """Any text up to a mark, and the mark."""
        found = self._tokens.search(mark)
        if found:
            return f"{ANY} {self.literal(mark[found.start() :])}"
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}[suffix={_quoted(mark)}]: {ANY}")
        return name

    def after_text(self, mark: str) -> str:
        """Any text up to the first occurrence of a mark, and the mark."""
        found = self._tokens.match(mark)
        if found:
            return f"{ANY} {self.literal(mark)}"
        name, text = f"r{len(self.lines)}", f"TEXT_{len(self.lines)}"
        self.lines += [f"{text}: {ANY}", f"{name}[lazy]: {text} {_quoted(mark)}"]
        return name

    def json(self, schema: Mapping[str, Any]) -> str:
        """A JSON value that fits a schema."""
        return self.rule("%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": BLANKS}}))


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
