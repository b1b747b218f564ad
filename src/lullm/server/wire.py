"""The one way from a request's bytes to a model: exact types, and nothing that is misspelt goes unnoticed.

Types are checked strictly here; ranges are checked by `SamplingParams` and the engine. A field is taken, or refused
with 400:

- `INERT` fields cannot change the result and are accepted without effect;
- `MISSING` fields ask for machinery that does not exist: only the values that ask for nothing pass;
- every other unknown field is refused.

A body that declares a field of these names takes it.
"""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from lullm.server.error import ApiError

INERT = frozenset({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})

MISSING: dict[str, tuple[Any, ...]] = {
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "suffix": (None, ""),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None,),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "use_beam_search": (None, False),
    "guided_decoding_backend": (None,),
}
"""Field -> the values of it that ask for nothing."""

MAX_FIELDS = 128

FAIL_FAST = Field(fail_fast=True)  # one error per bad entry would be a million in a large body
Strings = Annotated[list[str], FAIL_FAST]
TokenIds = Annotated[list[int], FAIL_FAST]


class WireModel(BaseModel):
    """A JSON object: exact types, no unknown fields, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _bound_fields(cls, data: Any) -> Any:
        # One error is collected per unknown field, and a body has room for a million of them.
        if isinstance(data, dict) and len(data) > MAX_FIELDS:
            raise ValueError(f"an object here has at most {MAX_FIELDS} fields, got {len(data)}")
        return data


Body = TypeVar("Body", bound=WireModel)


def parse_body(kind: type[Body], body: bytes | dict[str, Any]) -> Body:
    """A request's body, or the fields of its query, as `kind`.

    Raises:
        ApiError: 400, naming the first offending field.
    """
    data = _read_json(body) if isinstance(body, bytes) else body
    for field, harmless in MISSING.items():
        if field in data and field not in kind.model_fields:
            value = data.pop(field)
            if not any(type(value) is type(ok) and value == ok for ok in harmless):
                raise ApiError(400, f"{field} is not supported by this server", param=field, code="unsupported_field")
    for field in (INERT & data.keys()) - kind.model_fields.keys():
        del data[field]
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _first_problem(error) from None


def _read_json(raw: bytes) -> dict[str, Any]:
    try:
        data = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return data


def _first_problem(error: ValidationError) -> ApiError:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    location = problem["loc"]
    path = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        message, code = f"unknown field {path!r}", "unknown_field"
    elif problem["type"] == "missing":
        message, code = f"{path} is required", "missing_field"
    else:
        message, code = f"{path}: {problem['msg'].removeprefix('Value error, ')}", "invalid_value"
    return ApiError(400, message, param=str(location[0]) if location else None, code=code)
