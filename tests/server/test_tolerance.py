"""Unknown fields over HTTP: ignored with a header and one line in the log, or refused."""

import json
import logging

import pytest
from kit.template.styles import QWEN_TOOLS

GOOD = {"model": "scripted", "prompt": "x", "max_tokens": 2}


def ignored(response):
    assert response.status_code == 200, response.text
    return response.headers.get("x-lullm-ignored")


def test_the_answer_names_what_was_ignored(http):
    assert ignored(http.post("/v1/completions", json=GOOD | {"num_ctx": 8, "chat_id": "a"})) == "num_ctx, chat_id"
    turn = {"role": "user", "content": "x", "id": "7"}
    body = {"messages": [turn, turn], "max_tokens": 2, "stream": True, "cache_prompt": True}
    assert ignored(http.post("/v1/chat/completions", json=body)) == "messages[].id, cache_prompt"
    assert ignored(http.post("/tokenize", json={"prompt": "x", "extra": 1})) == "extra"
    assert ignored(http.post("/v1/completions", json=GOOD)) is None


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize", "/api/generate"])
def test_a_byte_order_mark_before_a_body_is_passed_over(http, path):
    """`curl -d @body.json` sends it with a file that an editor on Windows wrote."""
    assert http.post(path, content=b"\xef\xbb\xbf" + json.dumps(GOOD).encode()).status_code == 200


def test_any_integer_is_a_length(http):
    for limit in (2**62, 10**30, 10**400):
        assert http.post("/v1/completions", json=GOOD | {"max_tokens": limit, "stop": ":"}).status_code == 200


def test_a_refusal_names_it_too(http):
    response = http.post("/v1/completions", json=GOOD | {"num_ctx": 8, "n": 0})
    assert response.status_code == 400 and response.headers["x-lullm-ignored"] == "num_ctx"


def test_names_are_safe_and_few_in_a_header(http):
    names = ["a\r\nX: y", "ü", "n" * 500, *(f"f{number}" for number in range(30))]
    found = ignored(http.post("/v1/completions", json=GOOD | dict.fromkeys(names, 1))).split(", ")
    assert found[:3] == ["a%0D%0AX%3A%20y", "%C3%BC", "n" * 64]
    assert len(found) == 17 and found[-1] == "..."


def test_the_log_has_each_name_once(start, scripted, caplog):
    server = start(scripted())
    with caplog.at_level(logging.WARNING, "lullm.server.context"), server.http() as http:
        for _ in range(3):
            http.post("/v1/completions", json=GOOD | {"num_ctx": 8})
        for number in range(300):
            http.post("/tokenize", json={"prompt": "x", f"field{number}": 1})
    told = [record.getMessage() for record in caplog.records if "is ignored" in record.getMessage()]
    assert sum("num_ctx" in line for line in told) == 1 and len(told) == 256


@pytest.mark.parametrize(
    ("path", "kind", "tool", "body"),
    [
        ("/v1/responses", "web_search", {"name": "f", "type": "function"}, {"input": "x"}),
        ("/v1/messages", "web_search_20250305", {"name": "f", "input_schema": {}}, {"max_tokens": 9}),
    ],
)
def test_tools_that_their_makers_servers_run(start, replying, path, kind, tool, body):
    """An offer beside the client's own; without those it is what the request is for."""
    hosted = {"type": kind, "name": kind}
    body = {"messages": [{"role": "user", "content": "x"}]} | body if path == "/v1/messages" else body
    body = {"model": "scripted", "tools": [hosted, tool]} | body
    engine = replying(QWEN_TOOLS, "yes")
    with start(engine).http() as http:
        assert ignored(http.post(path, json=body)) == f"tools[{kind}]"
        assert kind not in engine.prompts[0]
        refused = http.post(path, json=body | {"tools": [hosted]})
    with start(replying(QWEN_TOOLS), unknown_fields="refuse").http() as http:
        for answer in (refused, http.post(path, json=body)):
            assert answer.status_code == 400 and kind in answer.json()["error"]["message"]


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
SHOWN = [
    {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "show", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}]},
]
ITEMS = [
    {"type": "function_call", "call_id": "1", "name": "show", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": "data:x"}]},
]


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": SHOWN}, "messages[].content[].content[image]"),
        ("/v1/responses", {"input": ITEMS}, "input[].output[input_image]"),
    ],
)
def test_a_tool_that_shows_a_picture(start, replying, path, body, name):
    """As when an agent reads one. It stays in the conversation: a refusal would be the end of that."""
    engine = replying(QWEN_TOOLS, "yes")
    with start(engine).http() as http:
        assert ignored(http.post(path, json={"model": "scripted"} | body)) == name
    assert "<tool_response>\n[image left out: the result of a tool is text here]\n</tool_response>" in engine.prompts[0]
    with start(replying(QWEN_TOOLS), unknown_fields="refuse").http() as http:
        assert http.post(path, json={"model": "scripted"} | body).status_code == 400


def test_refusing(start, scripted):
    with start(scripted(), unknown_fields="refuse").http() as http:
        for path, body in (
            ("/v1/completions", GOOD | {"num_ctx": 8}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x", "num_ctx": "7"}]}),
        ):
            error = http.post(path, json=body).json()["error"]
            assert error["code"] == "unknown_field" and "num_ctx" in error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_words_for_no_limit_and_no_seed(start, scripted, path):
    engine = scripted()
    text = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    with start(engine).http() as http:
        for limit in (None, -1):
            answer = http.post(path, json=text | {"max_tokens": limit, "seed": -1}).json()
            assert answer["choices"][0]["finish_reason"] == "stop" and answer["usage"]["completion_tokens"] == 21
        assert http.post(path, json=text | {"max_tokens": -2}).status_code == 400
    assert [(params.max_tokens, params.seed) for _, params, _ in engine.seen] == [(None, None)] * 2


def test_whole_numbers_with_a_point_and_an_empty_name(http):
    """As JSON of languages without integers; and vLLM serves the model that it has to requests for ''."""
    answer = http.post("/v1/completions", json=GOOD | {"model": "", "max_tokens": 2.0, "seed": 1.0, "temperature": 0.0})
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["completion_tokens"] == 2 and answer.json()["model"] == "scripted"
    body = {"messages": [{"role": "user", "content": "x"}], "options": {"num_predict": 2.0}, "stream": False}
    assert http.post("/api/chat", json=body | {"model": "scripted"}).json()["eval_count"] == 2
    for wrong in (2.5, True, "2", 1e400):
        content = json.dumps(GOOD | {"max_tokens": wrong})
        assert http.post("/v1/completions", content=content).status_code == 400, wrong
