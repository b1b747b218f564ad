"""The arguments of one call as rules of a grammar, for each form in which models write them."""

import json
from collections.abc import Mapping
from typing import Any

from lullm.text.reply.grammar.writer import GrammarWriter
from lullm.types.reply.form import KeywordValues, NamedBody, TaggedValues

_MAX_DEPTH = 20
_INTEGER = "/-?(0|[1-9][0-9]{0,15})/"
_NUMBER = r"/-?(0|[1-9][0-9]{0,15})(\.[0-9]{1,15})?/"


def arguments_of(writer: GrammarWriter, body: NamedBody, schema: Mapping[str, Any]) -> str:
    """A rule for the arguments of a call whose parameters have the schema."""
    if isinstance(body.arguments, TaggedValues):
        return _tagged(writer, body.arguments, schema)
    if isinstance(body.arguments, KeywordValues):
        return _Keywords(writer, body.arguments).members(schema, body.arguments.equals, 0)
    return writer.json(schema)


def _tagged(writer: GrammarWriter, form: TaggedValues, schema: Mapping[str, Any]) -> str:
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    end = form.close.rstrip()
    behind = writer.literal(form.close[len(end) :])
    members = []
    for name, declared in _properties(schema).items():
        if texts := _texts(declared):
            value = f"{writer.one_of(texts)} {writer.literal(end)}"
        elif declared.get("type") == "string":
            value = writer.until(end)
        else:
            value = f"{writer.json({**definitions, **declared})} {writer.literal(end)}"
        member = writer.rule(f"{writer.literal(f'{form.open}{name}{form.name_close}')} {value} {behind}")
        members.append(member if name in _required(schema) else member + "?")
    return " ".join(members)


class _Keywords:
    """Values between a program's brackets."""

    def __init__(self, writer: GrammarWriter, form: KeywordValues):
        self._writer = writer
        self._quote = form.quote
        self._comma = '","' if form.quote else '", "'
        self._any = ""

    def members(self, schema: Mapping[str, Any], equals: str, depth: int) -> str:
        """Keys and values with commas between them; those that are not required may be left out."""
        required = _required(schema)
        first, later = '""', '""'  # rules for the case that no member has come before, and that one has
        for name, declared in reversed(_properties(schema).items()):
            key = name if equals != ": " else json.dumps(name)
            member = self._writer.rule(
                f"{self._writer.literal(key + equals)} {self.value(declared, depth + 1)} {later}"
            )
            if name in required:
                first, later = member, self._writer.rule(f"{self._comma} {member}")
            else:
                first = self._writer.rule(f"{member} | {first}")
                later = self._writer.rule(f"{self._comma} {member} | {later}")
        return first

    def value(self, schema: Mapping[str, Any], depth: int) -> str:
        """A value of the schema's type; without a schema any value."""
        texts, kind = _texts(schema), schema.get("type")
        if texts:
            marks = self._quote or '"'
            return self._writer.one_of([f"{marks}{text}{marks}" for text in texts])
        if depth > _MAX_DEPTH or not isinstance(kind, str):
            return self._any_value()
        if kind == "array":
            items = schema.get("items")
            item = self.value(items, depth + 1) if isinstance(items, Mapping) else self._any_value()
            return self._writer.rule(f'"[" ({item} ({self._comma} {item})*)? "]"')
        if kind == "object" and _properties(schema):
            return self._writer.rule(f'"{{" {self.members(schema, ":" if self._quote else ": ", depth)} "}}"')
        return self._scalar(kind) or self._any_value()

    def _scalar(self, kind: str) -> str:
        writer = self._writer
        match kind:
            case "string" if self._quote:
                return writer.rule(f"{writer.literal(self._quote)} {writer.until(self._quote)}")
            case "string":
                return writer.json({"type": "string"})
            case "integer":
                return writer.rule(_INTEGER)
            case "number":
                return writer.rule(_NUMBER)
            case "boolean":
                return '("true" | "false")' if self._quote else '("True" | "False")'
            case "null":
                return '"null"' if self._quote else '"None"'
        return ""

    def _any_value(self) -> str:
        """Any value."""
        if not self._any:
            self._any = f"any{len(self._writer.lines)}"
            key = '/[A-Za-z_][A-Za-z0-9_]{0,40}/ ":"' if self._quote else f'{self._scalar("string")} ": "'
            scalars = " | ".join(self._scalar(kind) for kind in ("string", "number", "boolean", "null"))
            member, comma = self._writer.rule(f"{key} {self._any}"), self._comma
            array = f'"[" ({self._any} ({comma} {self._any})*)? "]"'
            self._writer.lines.append(f'{self._any}: {scalars} | {array} | "{{" ({member} ({comma} {member})*)? "}}"')
        return self._any


def _properties(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    given = schema.get("properties")
    if not isinstance(given, Mapping):
        return {}
    return {str(name): one if isinstance(one, Mapping) else {} for name, one in given.items()}


def _required(schema: Mapping[str, Any]) -> list[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else []


def _texts(schema: Mapping[str, Any]) -> list[str]:
    """The texts that a value may be, if the schema lists them."""
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return listed if isinstance(listed, list) and all(isinstance(one, str) for one in listed) else []
