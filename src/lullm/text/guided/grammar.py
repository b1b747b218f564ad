"""From the form of an output to a grammar of llguidance's, as text."""

import json
from typing import TYPE_CHECKING, Any

from lullm.errors import InvalidRequestError
from lullm.types.guided.params import StructuredOutputsParams

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_WHITESPACE = r"[ \n\t]{1,20}"
"""The blanks of JSON at one place. Without a bound a model that prefers blanks writes only blanks."""

_MAX_DEPTH = 100


def joined_grammar(outer: str, form: str) -> str:
    """Join a grammar of Lark that refers to `@form` with that form's grammar."""
    try:
        [inner] = json.loads(form)["grammars"]
    except (ValueError, TypeError, KeyError):
        inner = {"lark_grammar": form}
    return json.dumps({"grammars": [{"lark_grammar": outer}, {**inner, "name": "form"}]})


def grammar_of(params: StructuredOutputsParams) -> str:
    """The grammar of the form. Only JSON is checked here. Raises InvalidRequestError."""
    from llguidance import LLMatcher, grammar_from

    if params.json is not None:
        schema = _parsed(params.json, "json") if isinstance(params.json, str) else params.json
        return _json_grammar(schema, params)
    if params.json_object:
        return _json_grammar({"type": "object"}, params)
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        return grammar_from("choice", json.dumps(list(params.choice)))
    if params.grammar is not None:
        return _read(lambda: grammar_from("grammar", params.grammar))
    assert params.structural_tag is not None
    return _tag_grammar(_parsed(params.structural_tag, "structural_tag"))


def _json_grammar(schema: Any, params: StructuredOutputsParams) -> str:
    from llguidance import LLMatcher

    if params.disable_additional_properties:
        schema = closed_schema(schema)
    blanks: JsonCompileOptions = {"whitespace_pattern": params.whitespace_pattern or _WHITESPACE}
    if params.disable_any_whitespace:
        blanks = {"whitespace_flexible": False}
    return _read(lambda: LLMatcher.grammar_from_json_schema(schema, overrides=blanks))


def closed_schema(schema: Any, depth: int = 0) -> Any:
    """The schema with `additionalProperties: false` at every object that names its properties."""
    if depth > _MAX_DEPTH:
        raise _invalid(f"json is nested more than {_MAX_DEPTH} deep")
    if isinstance(schema, list):
        return [closed_schema(item, depth + 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: closed_schema(value, depth + 1) for name, value in schema.items()}
    names_properties = isinstance(schema.get("properties"), dict)
    return {"additionalProperties": False, **closed} if names_properties else closed


def _tag_grammar(tag: Any) -> str:
    """The grammar of {"structures": [{"begin", "schema", "end"}], "triggers": [...]}."""
    from llguidance import StructTag

    try:
        structures, triggers = tag["structures"], tag["triggers"]
        tags = []
        for one in structures:
            trigger = next((t for t in triggers if t and one["begin"].startswith(t)), None)
            if trigger is None:
                raise _invalid(f"structural_tag: no trigger begins {one['begin']!r}; triggers are {triggers}")
            schema = one.get("schema", {"type": "object"})
            tags.append(StructTag(trigger=trigger, begin=one["begin"], grammar=schema, end=one["end"]))
        if not tags:
            raise _invalid("structural_tag: structures is empty")
    except (KeyError, TypeError, AttributeError):
        form = '{"structures": [{"begin": "<f>", "schema": {...}, "end": "</f>"}], "triggers": ["<f"]}'
        raise _invalid(f"structural_tag must have the form {form}") from None
    return _read(lambda: StructTag.to_grammar(tags))


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(f"{name} is no JSON: {error}") from None


def _read(make: Any) -> str:
    try:
        return str(make())
    except (ValueError, TypeError, RecursionError, AssertionError) as error:
        raise _invalid(str(error)) from None


def _invalid(message: str) -> InvalidRequestError:
    return InvalidRequestError(f"structured_outputs: {reason_of(message)}", "structured_outputs")


def reason_of(message: str) -> str:
    """llguidance's message in one line of at most 500 characters, without its drawings of place and state."""
    lines = message.partition("\n<")[0].splitlines()
    told = " ".join(line.strip() for line in lines if line and not line[0].isspace())
    return told.replace(": error: ", ": ")[:500]
