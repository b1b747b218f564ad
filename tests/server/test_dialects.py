"""The bundled model in every dialect: one question, one answer, whatever client asks; and the same bounds for all."""

import json

import pytest
from pydantic import BaseModel

from lullm import AsyncLLMEngine, EngineConfig

QUESTION = [{"role": "user", "content": "Who is it?"}]
NUM_TOKENS = 12


class Pet(BaseModel):
    kind: str
    legs: int


SCHEMA = Pet.model_json_schema()
SCHEMA["properties"]["kind"]["maxLength"] = 10


@pytest.fixture(scope="module")
def server(start_for_module):
    engine = AsyncLLMEngine(EngineConfig(max_model_len=256))
    return start_for_module(engine, max_request_logprobs=100)


def read_objects(response):
    """The JSON objects of events or lines."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


DIALECTS = {
    "/v1/chat/completions": (
        {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": NUM_TOKENS},
        lambda whole: (whole["choices"][0]["message"]["content"], whole["usage"]["completion_tokens"]),
        lambda parts: "".join(c["delta"].get("content") or "" for part in parts for c in part["choices"]),
    ),
    "/v1/responses": (
        {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": NUM_TOKENS},
        lambda whole: (whole["output"][0]["content"][0]["text"], whole["usage"]["output_tokens"]),
        lambda parts: "".join(part["delta"] for part in parts if part["type"] == "response.output_text.delta"),
    ),
    "/v1/messages": (
        {"model": "demo", "messages": QUESTION, "temperature": 0, "max_tokens": NUM_TOKENS},
        lambda whole: (whole["content"][0]["text"], whole["usage"]["output_tokens"]),
        lambda parts: "".join(part["delta"]["text"] for part in parts if part["type"] == "content_block_delta"),
    ),
    "/api/chat": (
        {"model": "demo", "messages": QUESTION, "options": {"temperature": 0, "num_predict": NUM_TOKENS}},
        lambda whole: (whole["message"]["content"], whole["eval_count"]),
        lambda parts: "".join(part["message"]["content"] for part in parts),
    ),
    "/api/generate": (
        {"model": "demo", "prompt": "Who is it?", "options": {"temperature": 0, "num_predict": NUM_TOKENS}},
        lambda whole: (whole["response"], whole["eval_count"]),
        lambda parts: "".join(part["response"] for part in parts),
    ),
    "/completion": (
        {"temperature": 0, "n_predict": NUM_TOKENS},
        lambda whole: (whole["content"], whole["tokens_predicted"]),
        lambda parts: "".join(part["content"] for part in parts),
    ),
}


@pytest.fixture(scope="module")
def ask(server):
    """`ask(path, **fields)`: a response of one of the dialects; the raw one has the prompt of the others."""

    def ask(path, **fields):
        with server.http() as http:
            body = dict(DIALECTS[path][0])
            if path == "/completion":
                body["prompt"] = http.post("/tokenize", json={"messages": QUESTION}).json()["tokens"]
            with http.stream("POST", path, json=body | fields) as response:
                if response.headers["content-type"] == "application/json":
                    response.read()
                    return response, None
                return response, read_objects(response)

    return ask


@pytest.fixture(scope="module")
def expected(ask):
    response, _ = ask("/v1/chat/completions", stream=False)
    return DIALECTS["/v1/chat/completions"][1](response.json())


@pytest.mark.parametrize("path", DIALECTS)
def test_one_answer(ask, expected, path):
    _, of_whole, of_parts = DIALECTS[path]
    text, num_tokens = of_whole(ask(path, stream=False)[0].json())
    assert (text, num_tokens) == expected and num_tokens == NUM_TOKENS
    assert of_parts(ask(path, stream=True)[1]) == text


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"max_output_tokens": 60, "text": {"format": {"type": "json_schema", "name": "Pet"}}}),
        ("/v1/messages", {"max_tokens": 60, "output_config": {"format": {"type": "json_schema"}}}),
        ("/api/chat", {"format": SCHEMA, "options": {"temperature": 0, "num_predict": 60}}),
        ("/api/generate", {"format": SCHEMA, "options": {"temperature": 0, "num_predict": 60}}),
        ("/completion", {"json_schema": SCHEMA, "n_predict": 60}),
    ],
)
def test_a_form_of_the_answer(ask, path, fields):
    for part in ("text", "output_config"):
        if part in fields:
            fields[part]["format"]["schema"] = SCHEMA
    response, _ = ask(path, **fields, stream=False)
    assert response.status_code == 200, response.text
    Pet.model_validate_json(DIALECTS[path][1](response.json())[0])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"top_logprobs": 20}),
        ("/api/chat", {"logprobs": True, "top_logprobs": 20}),
        ("/api/generate", {"logprobs": True, "top_logprobs": 20, "raw": True}),
        ("/completion", {"n_probs": 20}),
    ],
)
def test_no_dialect_is_a_way_around_the_bounds(ask, path, fields):
    """12 tokens with 21 log-probabilities each, where a request may have 100."""
    for stream in (False, True):
        response, _ = ask(path, **fields, stream=stream)
        assert response.status_code == 400 and "252 log-probabilities" in response.text
