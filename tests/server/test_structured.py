"""Structured outputs over the wire: OpenAI's client and vLLM's fields, the bundled model behind them."""

import json
import re

import pytest
from pydantic import BaseModel

from lullm import AsyncLLMEngine, EngineConfig

ASK = {"model": "demo", "messages": [{"role": "user", "content": "Who is it?"}], "max_tokens": 60, "seed": 4}
COMPLETE = {"model": "demo", "prompt": "It is", "max_tokens": 60, "temperature": 0}


class Pet(BaseModel):
    kind: str
    legs: int


@pytest.fixture(scope="module")
def server(start_for_module):
    return start_for_module(AsyncLLMEngine(EngineConfig(max_model_len=256)))


def test_parse_into_a_class(server):
    """What the client's `parse` sends: a schema with `strict`, in which every property is required."""
    schema = Pet.model_json_schema()
    schema["properties"]["kind"]["maxLength"] = 10
    schema |= {"additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "Pet", "schema": schema, "strict": True}}
    with server.openai() as client:
        answer = client.chat.completions.create(**ASK, response_format=form).choices[0]
        assert answer.finish_reason == "stop"
        pet = Pet.model_validate_json(answer.message.content)
        assert set(json.loads(answer.message.content)) == {"kind", "legs"} and isinstance(pet.legs, int)
        chunks = client.chat.completions.create(**ASK, response_format=form, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == answer.message.content


def test_each_way_to_ask(server):
    with server.openai() as client:

        def text(**extra):
            return client.completions.create(**COMPLETE, extra_body=extra).choices[0].text

        assert re.fullmatch(r"[ab]{3}", text(structured_outputs={"regex": "[ab]{3}"}))
        assert text(structured_outputs={"choice": ["red", "blue"]}) in ("red", "blue")
        assert text(guided_choice=["red", "blue"]) in ("red", "blue")
        assert re.fullmatch(r"[ab]{3}", text(guided_regex="[ab]{3}"))
        assert re.fullmatch(r"x{2,4}", text(guided_grammar='root ::= "xx" "x"? "x"?'))
        assert json.loads(text(guided_json={"enum": [12]}, guided_whitespace_pattern=" ?")) == 12
        record = {"begin": "e", "schema": {"enum": [7]}, "end": ";"}
        tag = {"type": "structural_tag", "structures": [record], "triggers": ["e"]}
        tagged = text(structured_outputs={"structural_tag": json.dumps(tag)})
        assert "e7;" in tagged and "e" not in tagged.replace("e7;", ""), "each e begins a record"
        tagged = text(response_format=tag)
        assert "e7;" in tagged and "e" not in tagged.replace("e7;", "")
        assert json.loads(text(response_format={"type": "json_object", "schema": {"enum": [12]}})) == 12
        assert json.loads(text(response_format={"type": "json_schema", "schema": {"enum": [12]}})) == 12
        assert json.loads(text(json_schema={"enum": [12]}, grammar="")) == 12
        assert re.fullmatch(r"x{2,4}", text(grammar='root ::= "xx" "x"? "x"?'))
        assert json.loads(text(json_schema='{"enum": [12]}')) == 12
        assert re.fullmatch(r"[ab]{3}", text(regex="[ab]{3}"))
        assert re.fullmatch(r"x{2,4}", text(ebnf='root ::= "xx" "x"? "x"?'))
        assert text(response_format={"type": "json_object"}).startswith("{")
        assert text(response_format={"type": "text"}) == text()
        assert text(guided_regex="") == "" and text(guided_json={}, max_tokens=1), "the empty text, and any JSON"


def test_one_form_by_two_names(server):
    """As guidance asks a vLLM of any age, with the name of its backend."""
    grammar = '%llguidance {}\n\nstart: ANSWER\nANSWER: "red" | "blue"\n'
    both = {"guided_grammar": grammar, "structured_outputs": {"grammar": grammar}}
    with server.http() as http:
        asked = COMPLETE | both | {"guided_decoding_backend": "guidance"}
        assert http.post("/v1/completions", json=asked).json()["choices"][0]["text"] in ("red", "blue")
        error = http.post("/v1/completions", json=asked | {"guided_grammar": "start: /x/"}).json()["error"]
        assert error["param"] == "guided_grammar" and "two forms" in error["message"]
        error = http.post("/v1/completions", json=asked | {"guided_decoding_backend": "outlines"}).json()["error"]
        assert error["param"] == "guided_decoding_backend" and "llguidance" in error["message"]


WRONG_FORMATS = [
    {"type": "json_schema"},
    {"type": "text", "schema": {}},
    {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
    {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}, "schema": {}},
    {"type": "structural_tag"},
    {"type": "structural_tag", "structures": [{"begin": "<f>", "end": "</f>"}]},
    {"type": "structural_tag", "structures": [{"begin": "<f>", "end": "</f>"}], "triggers": ["<g"]},
    {"type": "structural_tag", "format": {"type": "any_text"}},
]


def test_wrong_grammars_stop_nothing(server):
    with server.http() as http:
        for field, value in (
            ("structured_outputs", {"regex": "(" * 100}),
            ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}),
            ("guided_grammar", "start: nowhere"),
            ("grammar", "start: nowhere"),
            ("json_schema", {"type": "nothing"}),
            *(("response_format", given) for given in WRONG_FORMATS),
        ):
            answer = http.post("/v1/completions", json=COMPLETE | {field: value})
            assert answer.status_code == 400 and answer.json()["error"]["param"] == field
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json=COMPLETE).status_code == 200
