"""The wire forms of structured outputs: OpenAI's `response_format`, vLLM's `structured_outputs` and its older names,
llama.cpp's `grammar` and `json_schema`, SGLang's `regex` and `ebnf`.
"""

import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from lullm.errors import InvalidRequestError
from lullm.log import get_logger
from lullm.server.error import ApiError
from lullm.server.wire import BOUNDED, FAIL_FAST, Strings, WireModel
from lullm.types.guided.params import StructuredOutputsParams

logger = get_logger(__name__)

_OLD_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_OTHER_NAMES = {"json_schema": "json", "grammar": "grammar", "regex": "regex", "ebnf": "grammar"}
_FIELDS = ("response_format", "structured_outputs", *_OLD_NAMES, *_OTHER_NAMES)


class JsonSchemaFormat(WireModel):
    """`strict` has no effect: every complete output fits its schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TagStructure(WireModel):
    """JSON between two marks. `schema`: if left out, any JSON object."""

    begin: str
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    end: str


class ResponseFormat(WireModel):
    """`schema`: llama.cpp's place of a schema. `structures`, `triggers`: vLLM's, of the type 'structural_tag'."""

    missing: ClassVar = {"format": (None,)}

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    structures: Annotated[list[TagStructure], FAIL_FAST, BOUNDED] | None = None
    triggers: Strings | None = None

    def params(self) -> dict[str, Any]:
        """The same as fields of `StructuredOutputsParams`; empty: any text.

        Raises ApiError: it lacks what its type needs, or has what belongs to another type.
        """
        fields = {"json_schema": self.json_schema, "schema": self.schema_, "structures": self.structures}
        given = [name for name, value in (fields | {"triggers": self.triggers}).items() if value is not None]
        for name in given:
            if name not in _FORMAT_FIELDS[self.type]:
                raise _wrong_format(f"{name} is not for the type {self.type!r}")
        if self.type == "structural_tag":
            if self.structures is None or self.triggers is None:
                raise _wrong_format("the type 'structural_tag' needs structures and triggers")
            tag = self.model_dump(by_alias=True, exclude_none=True, include={"type", "structures", "triggers"})
            return {"structural_tag": json.dumps(tag)}
        if len(given) > 1:
            raise _wrong_format("give the schema once, as json_schema.schema")
        schema = self.schema_ if self.json_schema is None else self.json_schema.schema_
        if schema is not None:
            return {"json": schema}
        if self.type == "json_schema":
            raise _wrong_format("the type 'json_schema' needs json_schema.schema")
        return {"json_object": True} if self.type == "json_object" else {}


_FORMAT_FIELDS: dict[str, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema", "schema"),
    "structural_tag": ("structures", "triggers"),
}


def _wrong_format(message: str) -> ApiError:
    return ApiError(400, f"response_format: {message}", param="response_format")


class StructuredOutputsBody(WireModel):
    """The fields of `StructuredOutputsParams`, which checks their values."""

    json_: dict[str, Any] | str | None = Field(None, alias="json")
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class StructuredBody(WireModel):
    """The fields for the form of an answer, in several spellings."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsBody | None = None
    # vLLM's names before 0.12
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: Strings | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    # llama.cpp's; SGLang's schema is text
    json_schema: dict[str, Any] | str | None = None
    grammar: str | None = None
    # SGLang's
    regex: str | None = None
    ebnf: str | None = None

    def form_field(self) -> str:
        """The field that has the form; 'structured_outputs' if none does."""
        return next((name for name in _FIELDS if getattr(self, name) is not None), "structured_outputs")

    def form(self) -> StructuredOutputsParams | None:
        """The requested form. Raises ApiError, InvalidRequestError: it is wrong, or there are two.

        The same form by two names is one: clients do not know a server's age (guidance sends vLLM's old and new names).
        """
        given = [name for name in _FIELDS if getattr(self, name) is not None]
        if self.response_format is not None and not self.response_format.params():
            given.remove("response_format")
        if self.grammar == "":  # llama.cpp's clients send all its defaults
            given.remove("grammar")
        if not given and self.guided_whitespace_pattern is not None:
            raise ApiError(400, "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern")
        forms = {name: self._form_of(name) for name in given}
        for name in given[1:]:
            if forms[name] != forms[given[0]]:
                raise ApiError(400, f"{given[0]} and {name} ask for two forms; give one of them", param=name)
        return forms[given[0]] if given else None

    def _form_of(self, name: str) -> StructuredOutputsParams:
        """The form in the field `name`. Raises InvalidRequestError: it is wrong."""
        try:
            return StructuredOutputsParams(**self._fields(name))
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error).replace("structured_outputs", name, 1), name) from None

    def _fields(self, name: str) -> dict[str, Any]:
        if name == "structured_outputs":
            assert self.structured_outputs is not None
            return self.structured_outputs.model_dump(by_alias=True)
        if name == "response_format":
            assert self.response_format is not None
            return self.response_format.params()
        if name in _OTHER_NAMES:
            return {_OTHER_NAMES[name]: getattr(self, name)}
        logger.warning("the field %s is an old name: use structured_outputs.%s", name, _OLD_NAMES[name])
        return {_OLD_NAMES[name]: getattr(self, name), "whitespace_pattern": self.guided_whitespace_pattern}
