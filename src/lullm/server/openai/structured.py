"""The wire forms of structured outputs: OpenAI's `response_format`, vLLM's `structured_outputs` and its older names."""

from typing import Any, Literal

from pydantic import Field

from lullm.errors import InvalidRequestError
from lullm.log import get_logger
from lullm.server.error import ApiError
from lullm.server.wire import Strings, WireModel
from lullm.types.guided.params import StructuredOutputsParams

logger = get_logger(__name__)

_OLD_NAMES = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
}
_FIELDS = ("response_format", "structured_outputs", *_OLD_NAMES)


class JsonSchemaFormat(WireModel):
    """`strict` has no effect: every complete output fits its schema."""

    name: str
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


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

    def form_field(self) -> str:
        """The field that has the form; 'structured_outputs' if none does."""
        return next((name for name in _FIELDS if getattr(self, name) is not None), "structured_outputs")

    def form(self) -> StructuredOutputsParams | None:
        """The requested form. Raises ApiError, InvalidRequestError: it is wrong, or given twice."""
        given = [name for name in _FIELDS if getattr(self, name) is not None]
        if self.response_format is not None and self.response_format.type == "text":
            given.remove("response_format")
        if len(given) > 1:
            raise ApiError(400, f"{' and '.join(given)} say the same thing; give one of them", param=given[1])
        if not given:
            if self.guided_whitespace_pattern is not None:
                raise ApiError(400, "guided_whitespace_pattern needs guided_json", param="guided_whitespace_pattern")
            return None
        try:
            return StructuredOutputsParams(**self._fields(given[0]))
        except InvalidRequestError as error:
            raise InvalidRequestError(str(error).replace("structured_outputs", given[0], 1), given[0]) from None

    def _fields(self, name: str) -> dict[str, Any]:
        if name == "structured_outputs":
            assert self.structured_outputs is not None
            return self.structured_outputs.model_dump(by_alias=True)
        if name == "response_format":
            assert self.response_format is not None
            return _of_response_format(self.response_format)
        logger.warning("the field %s is an old name: use structured_outputs.%s", name, _OLD_NAMES[name])
        return {_OLD_NAMES[name]: getattr(self, name), "whitespace_pattern": self.guided_whitespace_pattern}


def _of_response_format(given: ResponseFormat) -> dict[str, Any]:
    if given.type == "json_object":
        return {"json_object": True}
    if given.json_schema is None or given.json_schema.schema_ is None:
        raise ApiError(400, "response_format of type json_schema needs json_schema.schema", param="response_format")
    return {"json": given.json_schema.schema_}
