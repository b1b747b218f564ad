"""The one way from a request's bytes to a model: exact types, and no misspelt field goes unnoticed.

Types are checked strictly here; ranges are checked by `SamplingParams` and the engine. A field is taken, or:
- `INERT` fields cannot change the result and are accepted without effect;
- `MISSING` fields need features that do not exist: only values that ask for nothing pass;
- every other unknown field is refused, or ignored, and its path is reported to the caller.

A body that declares a field of these names takes it.
"""

import functools
import re
import typing
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails, from_json

from lullm.server.error import ApiError

INERT = frozenset(
    {
        *("user", "metadata", "client_metadata", "store", "safety_identifier", "parallel_tool_calls"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention"),
    }
)

MISSING: dict[str, tuple[Any, ...]] = {
    "chat_template": (None,),
    "tools": (None, []),
    "tool_choice": (None, "none"),
    "functions": (None, []),
    "function_call": (None, "none"),
    "suffix": (None, ""),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "moderation": (None,),
    "web_search_options": (None,),
    "service_tier": (None, "auto", "default"),
    "use_beam_search": (None, False),
    "guided_decoding_backend": (None, "auto", "guidance"),
    "logits_processors": (None, []),
    **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "mm_payload", "repetition_detection"), (None,)),
    **dict.fromkeys(("watermarking", "return_mm_kwargs", "return_token_offsets", "return_prompt_text"), (None, False)),
    **dict.fromkeys(("logprob_token_ids", "previous_input_messages"), (None, [])),
    **dict.fromkeys(("vllm_xargs", "media_io_kwargs"), (None, {})),
    "truncation_side": (None, "left"),
}
"""Field of a body -> its values that ask for nothing. A body that declares the field has the feature."""

_INSTEAD = {
    "use_beam_search": "give beam_width, the number of beams",
    "chat_template": "start it with --chat-template",
    "logits_processors": "give logit_bias, allowed_token_ids or bad_words",
    "guided_decoding_backend": "the one backend is llguidance, which vLLM calls 'guidance'",
    "logprob_token_ids": "-1 log-probabilities are those of all tokens (--max-logprobs)",
    "truncation_side": "truncate_prompt_tokens keeps the last tokens",
    "repetition_detection": "give repetition_penalty or frequency_penalty",
    "media_io_kwargs": "mm_processor_kwargs say what is read of a video",
    "return_prompt_text": "POST /apply-template gives it",
    "previous_input_messages": "they are the beginning of input",
    "format": "give structures and triggers",
    "add_special_tokens": "the chat template writes the special tokens",
    "messages": "send texts as input; POST /apply-template makes one of a conversation",
}

MAX_FIELDS = 128

_UNKNOWN_TAG = re.compile(r"Input tag (.*) found using '(\w+)' does not match any of the expected tags: (.*)", re.S)

_CLASSES = re.compile(r" or (?:instance of \w+|object to extract fields from)")
"""pydantic's words for its own classes; here they are JSON's objects."""

_OTHER_MEDIA = re.compile("image|audio|video|file|document")

FAIL_FAST = Field(fail_fast=True)  # one error per bad entry would be a million in a large body
MAX_ITEMS = 16384


def _bounded(value: Any) -> Any:
    # Before they are parsed: a body has room for 200,000 messages, which take the event loop a second.
    if isinstance(value, list) and len(value) > MAX_ITEMS:
        raise ValueError(f"at most {MAX_ITEMS} items may stand in a list, got {len(value)}")
    return value


BOUNDED = BeforeValidator(_bounded)
"""For fields that are lists of objects."""
Strings = Annotated[list[str], FAIL_FAST]
TokenIds = Annotated[list[int], FAIL_FAST]


class WireModel(BaseModel):
    """A JSON object: exact types, no unknown fields, no NaN.

    A null in a field that takes none counts as left out, and an integer may be written as 2.0.

    Attributes:
        is_echoed: clients send such objects back from answers: unknown fields with null or `[]` do not count.
        missing: as `MISSING`, for objects of this class.
        others: types of objects that occur in lists beside these, and do not exist here. A client offers them and does
            not ask for them, so they count as unknown fields; but a list of only these is refused.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())
    is_echoed: ClassVar = False
    missing: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    others: ClassVar[re.Pattern[str] | None] = None

    @classmethod
    def stand_in(cls, other: str) -> list[dict[str, Any]]:
        """The replacement for an object of one of the `others`."""
        return []

    @model_validator(mode="before")
    @classmethod
    def _read_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # One error is collected per unknown field, and a body has room for a million of them.
        if len(data) > MAX_FIELDS:
            raise ValueError(f"an object here has at most {MAX_FIELDS} fields, got {len(data)}")
        if any(type(value) is float and value.is_integer() for value in data.values()):
            whole = _integers(cls)
            data = {k: int(v) if k in whole and type(v) is float and v.is_integer() else v for k, v in data.items()}
        if not any(value is None or value == [] for value in data.values()):
            return data
        shape, nullable = _shape(cls), _nullable(cls)

        def asks(name: str, value: Any) -> bool:
            if name in shape:
                return value is not None or name in nullable
            return not cls.is_echoed or (value is not None and value != [])

        return {name: value for name, value in data.items() if asks(name, value)}


def unseen(medium: str) -> str:
    """The note in place of a picture, a file, ... in the result of a tool, which chat templates show as text."""
    return f"[{medium} left out: the result of a tool is text here]"


Body = TypeVar("Body", bound=WireModel)


def parse_body(kind: type[Body], body: bytes | dict[str, Any], ignored: list[str] | None = None) -> Body:
    """A request's body, or the fields of its query, as `kind`.

    Args:
        ignored: unknown fields are left out, and their paths added here, such as 'messages[].id'; None: refused.

    Raises:
        ApiError: 400, naming the first offending field as the body has it.
    """
    data = parse_json(body) if isinstance(body, bytes) else body
    _refuse_missing({**MISSING, **kind.missing}, kind, data, "")
    for field in (INERT & data.keys()) - _shape(kind).keys():
        del data[field]
    unknown = dict.fromkeys(_unknown(kind, data, "", drops=ignored is not None))
    if ignored is not None:
        ignored += unknown
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _first_problem(error, data) from None


def parse_json(raw: bytes) -> dict[str, Any]:
    """A JSON object. Raises ApiError: 400: it is not one, or nested more than 200 deep."""
    try:
        data = from_json(raw.removeprefix(BOM_UTF8), allow_inf_nan=False)  # as read_text of a folder's files
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return data


# -- unknown fields ----------------------------------------------------------------------------------------------


@functools.cache
def _shape(kind: type[WireModel]) -> dict[str, tuple[type[WireModel], ...]]:
    """The fields of a model by their names on the wire -> the models in them."""
    return {field.alias or name: tuple(_models_in(field.annotation)) for name, field in kind.model_fields.items()}


@functools.cache
def _nullable(kind: type[WireModel]) -> frozenset[str]:
    """The fields of a model that take null."""
    return frozenset(
        field.alias or name
        for name, field in kind.model_fields.items()
        if field.annotation is Any or type(None) in typing.get_args(field.annotation)
    )


@functools.cache
def _integers(kind: type[WireModel]) -> frozenset[str]:
    """The fields of a model that take an integer, and nothing else but null."""
    return frozenset(
        field.alias or name
        for name, field in kind.model_fields.items()
        if set(typing.get_args(field.annotation) or [field.annotation]) - {type(None)} == {int}
    )


def _models_in(annotation: Any) -> Iterator[type[WireModel]]:
    if isinstance(annotation, type) and issubclass(annotation, WireModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)


def _kind_of(kinds: tuple[type[WireModel], ...], data: dict[str, Any]) -> type[WireModel]:
    """The model of an object, out of several: the first whose constant fields, such as its `type`, agree."""

    def agrees(kind: type[WireModel]) -> bool:
        fields = kind.model_fields.items()
        constants = {n: typing.get_args(f.annotation) for n, f in fields if typing.get_origin(f.annotation) is Literal}
        return all(n not in data or data[n] in values for n, values in constants.items())

    return kinds[0] if len(kinds) == 1 else next(filter(agrees, kinds), kinds[0])


def _unknown(kind: type[WireModel], data: dict[str, Any], path: str, drops: bool) -> Iterator[str]:
    """The paths in `data` that `kind` does not know, at any depth, if their values ask for something.

    `drops`: delete them. Fields that objects below name as `missing` are deleted, or refused with an ApiError, anyway.
    """
    if len(data) > MAX_FIELDS:
        return  # it is refused as a whole
    shape = _shape(kind)
    for name in list(data):
        if name not in shape and kind.model_config.get("extra") == "forbid":
            value = data.pop(name) if drops else data[name]
            if value is not None and value != []:
                yield path + name
        elif shape.get(name):
            yield from _unknown_below(shape[name], data[name], path + name, drops)


def _unknown_below(kinds: tuple[type[WireModel], ...], value: Any, path: str, drops: bool) -> Iterator[str]:
    if isinstance(value, list) and len(value) <= MAX_ITEMS:  # longer ones are refused as a whole
        if drops:
            yield from _drop_others(kinds, value, path)
        for item in value:
            yield from _unknown_below(kinds, item, path + "[]", drops)
    elif isinstance(value, dict):
        kind = _kind_of(kinds, value)
        _refuse_missing(kind.missing, kind, value, path + ".")
        yield from _unknown(kind, value, path + ".", drops)


def _drop_others(kinds: tuple[type[WireModel], ...], items: list[Any], path: str) -> Iterator[str]:
    kind = next((kind for kind in kinds if kind.others), None)
    if kind is None or kind.others is None:
        return
    types = [str(item.get("type")) if isinstance(item, dict) else "" for item in items]
    dropped = {other for other in types if kind.others.fullmatch(other)}
    kept = [
        one
        for item, own in zip(items, types, strict=True)
        for one in (kind.stand_in(own) if own in dropped else [item])
    ]
    if kept:
        items[:] = kept
        yield from (f"{path}[{own}]" for own in types if own in dropped)


def _refuse_missing(
    missing: Mapping[str, tuple[Any, ...]], kind: type[WireModel], data: dict[str, Any], path: str
) -> None:
    """Delete the fields that ask for nothing. Raises ApiError: one needs a feature that does not exist."""
    for field in (missing.keys() & data.keys()) - _shape(kind).keys():
        value = data.pop(field)
        if not any(type(value) is type(ok) and value == ok for ok in missing[field]):
            param = (path + field).partition(".")[0].removesuffix("[]")
            hint = f"; {_INSTEAD[field]}" if field in _INSTEAD else ""
            raise ApiError(
                400, f"{path}{field} is not supported by this server{hint}", param=param, code="unsupported_field"
            )


# -- errors ------------------------------------------------------------------------------------------------------


def _first_problem(error: ValidationError, data: dict[str, Any]) -> ApiError:
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    problem = next((p for p in problems if p["type"] == "extra_forbidden"), problems[0])
    first = _place(problem, data)
    # Each branch of a union fails. The deepest failure is in the branch that the user meant.
    places = [(_place(p, data), p) for p in problems]
    same = [(place, p) for place, p in places if place[: len(first)] == first or first[: len(place)] == place]
    place = max((place for place, _ in same), key=len)
    found = problem if problem["type"] == "extra_forbidden" else next(p for at, p in same if at == place)
    path, param = ".".join(map(str, place)), str(place[0]) if place else None
    if found["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field {path!r}", param=param, code="unknown_field")
    if found["type"] == "missing":
        return ApiError(400, f"{path} is required", param=param, code="missing_field")
    words = list(dict.fromkeys(_said(p, data) for at, p in same if at == place))
    if len(words) > 1:
        words = [words[0], *(word.removeprefix("Input should be ") for word in words[1:])]
    message = " or ".join(words)
    return ApiError(400, f"{path}: {message}" if path else message, param=param, code="invalid_value")


def _said(problem: ErrorDetails, data: Any) -> str:
    """pydantic's message in the terms of the body's author."""
    message, place = problem["msg"], _place(problem, data)
    if unknown := _UNKNOWN_TAG.fullmatch(message):
        return _not_taken(*unknown.groups())
    if problem["type"] == "literal_error" and place[-1:] == ("type",):
        given = functools.reduce(lambda found, name: found[name], place, data)
        return _not_taken(repr(given), "type", message.removeprefix("Input should be "))
    return _CLASSES.sub("", message).removeprefix("Value error, ")


def _not_taken(given: str, name: str, taken: str) -> str:
    media = "pictures, videos and sounds" if "audio" in taken else "pictures"
    hint = f" (of all media, only {media} are taken)" if _OTHER_MEDIA.search(given) else ""
    return f"{name} {given} is not supported by this server{hint}; it takes {taken}"


def _place(problem: ErrorDetails, data: Any) -> tuple[str | int, ...]:
    """Where a problem is, in the body's own names: pydantic's also name the branches of unions."""
    place: list[str | int] = []
    location = problem["loc"]
    for number, name in enumerate(location):
        is_last = number == len(location) - 1
        if _has(data, name):
            place.append(name)
            data = data[name]
        elif is_last and problem["type"] == "missing":
            place.append(name)
    return tuple(place)


def _has(data: Any, name: str | int) -> bool:
    if isinstance(data, list):
        return isinstance(name, int) and name < len(data)
    return isinstance(data, dict) and name in data
