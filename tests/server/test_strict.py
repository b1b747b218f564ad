"""OpenAI's own models take every body and every line of a stream as they are, without converting anything."""

import json

import pytest
from kit.template.styles import QWEN_TOOLS
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<think>\nhm\n</think>\n\n<tool_call>\n{"name": "add", "arguments": {"x": 1}}\n</tool_call>'
MESSAGES = [{"role": "user", "content": "hello"}]
FORMS = {
    "plain": {},
    "choices": {"n": 2},
    "usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "stop": {"stop": ["d"]},
    "ids": {"return_token_ids": True},
}


def lines(response):
    data = [line.removeprefix("data: ") for line in response.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    return data[:-1]


@pytest.mark.parametrize("form", [*FORMS, "logprobs"])
def test_completions(http, form):
    body = {"prompt": "x", "max_tokens": 5} | (FORMS | {"logprobs": {"logprobs": 2}})[form]
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    Completion.model_validate_json(http.post("/v1/completions", json=whole).content, strict=True)
    with http.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
        chunks = [Completion.model_validate_json(with_reason(line), strict=True) for line in lines(response)]
    assert len(chunks) > 3


def with_reason(line):
    """OpenAI's client has one model for answers and for chunks, whose `finish_reason` is null before the last."""
    chunk = json.loads(line)
    for choice in chunk["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "length"
    return json.dumps(chunk)


@pytest.mark.parametrize("form", [*FORMS, "logprobs"])
def test_chats(http, form):
    body = {"messages": MESSAGES, "max_tokens": 5} | (FORMS | {"logprobs": {"logprobs": True, "top_logprobs": 2}})[form]
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    ChatCompletion.model_validate_json(http.post("/v1/chat/completions", json=whole).content, strict=True)
    with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
        chunks = [ChatCompletionChunk.model_validate_json(line, strict=True) for line in lines(response)]
    assert len(chunks) > 3


@pytest.mark.parametrize(
    "fields", [{}, {"tool_choice": "required"}, {"stream_options": {"include_usage": True}}], ids=str
)
def test_calls_of_tools(start, replying, fields):
    body = {"messages": MESSAGES, "tools": [ADD]} | fields
    whole = {name: value for name, value in body.items() if name != "stream_options"}
    with start(replying(QWEN_TOOLS, CALL, CALL)).http() as http:
        answer = http.post("/v1/chat/completions", json=whole)
        [choice] = ChatCompletion.model_validate_json(answer.content, strict=True).choices
        assert choice.message.content is None and choice.message.tool_calls[0].function.name == "add"
        with http.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as response:
            chunks = [ChatCompletionChunk.model_validate_json(line, strict=True) for line in lines(response)]
    assert any(choice.delta.tool_calls for chunk in chunks for choice in chunk.choices)


def test_models(http):
    for raw in (http.get("/v1/models").json()["data"][0], http.get("/v1/models/scripted").json()):
        Model.model_validate(raw, strict=True)
