"""From forms to grammars, by the texts that these accept."""

import json

import pytest

from lullm.errors import InvalidRequestError
from lullm.text.guided.grammar import grammar_of
from lullm.types.guided.params import MAX_GRAMMAR_CHARS, StructuredOutputsParams
from lullm.weights.folder import DEMO_FOLDER

TAG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<f=add>", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}}, "end": "</f>"}
    ],
    "triggers": ["<f="],
}


def accepts(text, **form):
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer((DEMO_FOLDER / "tokenizer.json").read_text())
    matcher = LLMatcher(tokenizer, grammar_of(StructuredOutputsParams(**form)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize("schema", [OBJECT, json.dumps(OBJECT)])
def test_json(schema):
    assert accepts('{"a":1}', json=schema) and accepts('{ "a": 1,\n "b": [] }', json=schema)
    assert not accepts('{"a":"x"}', json=schema) and not accepts("{}", json=schema)
    assert accepts('{"a":1,"b":2}', json=schema)
    assert not accepts('{"a":1,"b":2}', json=schema, disable_additional_properties=True)


def test_blanks():
    """A bound, because a model that prefers blanks would write nothing else until its length is full."""
    text = '{%s"a":1}'
    assert accepts(text % (" " * 20), json=OBJECT) and not accepts(text % (" " * 21), json=OBJECT)
    assert accepts(text % "", json=OBJECT, disable_any_whitespace=True)
    assert not accepts(text % " ", json=OBJECT, disable_any_whitespace=True)
    assert accepts(text % "\t\t", json=OBJECT, whitespace_pattern=r"\t+")
    assert not accepts(text % " ", json=OBJECT, whitespace_pattern=r"\t+")


def test_forms_that_are_false():
    """They ended in an internal error."""
    assert accepts("[1]", json={}) and accepts("", regex="") and not accepts("a", regex="")
    for field in ("json", "grammar", "structural_tag"):
        with pytest.raises(InvalidRequestError, match=r"structured_outputs: .{5}"):
            accepts("", **{field: ""})


def test_other_forms():
    assert accepts("ab12", regex=r"[a-z]+\d+") and not accepts("12", regex=r"[a-z]+\d+")
    assert accepts('say "no"', choice=["yes", 'say "no"']) and not accepts("say", choice=["yes", 'say "no"'])
    assert accepts('{"x": [1]}', json_object=True) and not accepts("[1]", json_object=True)
    assert accepts("xyyz", grammar='start: "x" "y"* "z"') and accepts("x9y", grammar='root ::= "x" [0-9] "y"')


def test_structural_tag():
    tag = json.dumps(TAG)
    assert accepts("plain text", structural_tag=tag)
    assert accepts('so: <f=add>{"n": 3}</f> and on', structural_tag=tag)
    assert not accepts("so: <f=add>no json</f>", structural_tag=tag)


@pytest.mark.parametrize(
    "tag",
    ["{", "[]", "{}", json.dumps(TAG | {"structures": []}), json.dumps(TAG | {"triggers": ["<g"]}),
     json.dumps(TAG | {"structures": [3]}), json.dumps(TAG | {"triggers": [3]})],
)  # fmt: skip
def test_bad_tags(tag):
    with pytest.raises(InvalidRequestError, match="structural_tag"):
        grammar_of(StructuredOutputsParams(structural_tag=tag))


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"json_object": False}, {"regex": "a", "json": {}}, {"json": 3}, {"regex": 3}, {"choice": []},
        {"choice": "ab"}, {"choice": [1]}, {"choice": [""]}, {"choice": ["a"] * 10_001}, {"json_object": 1},
        {"structural_tag": {}},
        {"regex": "a" * (MAX_GRAMMAR_CHARS + 1)}, {"json": {"enum": ["a" * MAX_GRAMMAR_CHARS]}},
        {"json": {"enum": [object()]}}, {"regex": "a", "disable_any_whitespace": 1},
    ],
)  # fmt: skip
def test_refused(fields):
    with pytest.raises(InvalidRequestError) as error:
        StructuredOutputsParams(**fields)
    assert error.value.param == "structured_outputs"


def test_json_text_that_is_none():
    with pytest.raises(InvalidRequestError, match="no JSON"):
        grammar_of(StructuredOutputsParams(json="{"))
    deep = {}
    for _ in range(90):
        deep = {"properties": {"a": deep}}
    with pytest.raises(InvalidRequestError, match="deep"):
        grammar_of(StructuredOutputsParams(json=deep, disable_additional_properties=True))
