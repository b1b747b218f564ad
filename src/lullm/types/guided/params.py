"""StructuredOutputsParams: the form that an output must have. Guide: the same form, ready for draws."""

import json
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from lullm.errors import InvalidRequestError

MAX_GRAMMAR_CHARS = 1 << 18
MAX_CHOICES = 10_000


class Guide(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A grammar that output tokens must fit, as llguidance's text, and the tokens that may end a text that fits.

    The tokens that a draw may choose depend on the guide and the output tokens before it alone.
    """

    grammar: str
    end_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StructuredOutputsParams:
    """The form of an output, with the names and meanings of vLLM's. Exactly one of the first six is given.

    Args:
        json: a JSON schema, as a dict or as text.
        regex: a regular expression (Rust's syntax, without look-around) that the whole output matches.
        choice: texts; the output is one of them.
        grammar: a context-free grammar: Lark as llguidance reads it, or llama.cpp's GBNF.
        json_object: True: any JSON object.
        structural_tag: JSON text: {"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers"}:
            free text, in which a trigger starts one of the structures.
        disable_any_whitespace: JSON without blanks. Otherwise up to 20 may stand where JSON allows them; without a
            bound a model may write blanks only.
        disable_additional_properties: objects have only the properties that the schema names, also where the schema
            says nothing about it.
        whitespace_pattern: a regular expression for the blanks of JSON instead.

    Raises:
        InvalidRequestError: none or several forms, a wrong type, too long; `.param` names the field.
    """

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: list[str] | tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None

    def __post_init__(self) -> None:
        given = self._given()
        if len(given) != 1:
            raise _invalid(f"exactly one of {', '.join(FORMS)} must be given, not {' and '.join(given) or 'none'}")
        if self.json is not None and not isinstance(self.json, (str, dict)):
            raise _invalid(f"json must be a schema as a dict or as text, not {type(self.json).__name__}")
        for name in ("regex", "grammar", "structural_tag", "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise _invalid(f"{name} must be text, not {type(value).__name__}")
        for name in ("json_object", "disable_any_whitespace", "disable_additional_properties"):
            value = getattr(self, name)
            if not isinstance(value, bool) and (value is not None or name != "json_object"):
                raise _invalid(f"{name} must be true or false, not {value!r}")
        if self.choice is not None:
            is_list = isinstance(self.choice, (list, tuple))
            if not is_list or not self.choice or not all(isinstance(c, str) and c for c in self.choice):
                raise _invalid("choice must be a list of one or more texts, none of them empty")
            if len(self.choice) > MAX_CHOICES:
                raise _invalid(f"choice may hold at most {MAX_CHOICES} texts, got {len(self.choice)}")
        if self.num_chars > MAX_GRAMMAR_CHARS:
            raise _invalid(f"{given[0]} has {self.num_chars} characters; at most {MAX_GRAMMAR_CHARS} are read")

    @property
    def form(self) -> str:
        """The name of the given form."""
        return self._given()[0]

    def _given(self) -> list[str]:
        # Test for None: the schema `{}`, which any JSON fits, and the empty regex, which has one text, are falsy.
        return [name for name in FORMS if getattr(self, name) is not None and getattr(self, name) is not False]

    @property
    def num_chars(self) -> int:
        """The length of the form as text. Raises InvalidRequestError: a schema is no JSON."""
        value = getattr(self, self.form)
        if isinstance(value, (list, tuple)):
            return sum(map(len, value))
        return len(value if isinstance(value, str) else _schema_text(value))


FORMS = tuple(field.name for field in fields(StructuredOutputsParams))[:6]


def _schema_text(schema: object) -> str:
    """JSON text of a schema. Raises InvalidRequestError: it is nested too deep, or has values that JSON has not."""
    try:
        return json.dumps(schema)
    except (TypeError, ValueError, RecursionError) as error:
        raise _invalid(f"json is no JSON schema: {error}") from None


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs: {message}", "structured_outputs")
