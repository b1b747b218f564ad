"""The bundled model behind the server, with the options of a bare `lullm serve`."""

import json

import openai
import pytest

from lullm import AsyncLLMEngine, EngineConfig


def test_chat_and_completion(start):
    server = start(AsyncLLMEngine(EngineConfig()))
    with server.openai() as client:
        (model,) = client.models.list().data
        assert model.id == "demo"
        ask = {"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "temperature": 0, "max_tokens": 30}
        answer = client.chat.completions.create(**ask).choices[0]
        assert answer.message.content.strip() and answer.finish_reason in ("stop", "length")
        chunks = [chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**ask, stream=True)]
        assert "".join(chunks) == answer.message.content and len(chunks) > 3
        story = client.completions.create(model="demo", prompt="Once upon", max_tokens=30, temperature=0)
        assert story.usage.completion_tokens > 0 and story.choices[0].text.strip()


def test_calls_that_must_come(start):
    """A model that knows no tools calls them all the same: a grammar holds it, whole and streamed, greedy and drawn."""
    colors = {"type": "object", "properties": {"name": {"enum": ["red", "green"]}}, "required": ["name"]}
    tools = [
        {"type": "function", "function": {"name": "paint", "parameters": colors}},
        {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}},
    ]
    ask = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Paint it red!"}],
        "tools": tools,
        "max_tokens": 400,
    }
    named = {"type": "function", "function": {"name": "paint"}}
    with start(AsyncLLMEngine(EngineConfig(max_model_len=768))).openai() as client:
        create = client.chat.completions.create
        for choice in create(**ask, tool_choice="required", temperature=1.5, n=6, seed=1).choices:
            assert choice.message.content is None and choice.finish_reason in ("tool_calls", "length")
            for call in choice.message.tool_calls[: None if choice.finish_reason == "tool_calls" else -1]:
                valid = {"paint": ({"name": "red"}, {"name": "green"}), "stop": ({},)}[call.function.name]
                assert json.loads(call.function.arguments) in valid
        [whole] = create(**ask, tool_choice=named, temperature=0).choices
        [call] = whole.message.tool_calls
        assert call.function.name == "paint" and whole.finish_reason == "tool_calls"
        assert json.loads(call.function.arguments)["name"] in ("red", "green")
        chunks = [chunk.choices[0] for chunk in create(**ask, tool_choice=named, temperature=0, stream=True)]
        entries = [entry for chunk in chunks for entry in chunk.delta.tool_calls or []]
        assert "".join(entry.function.arguments for entry in entries) == call.function.arguments
        assert chunks[-1].finish_reason == "tool_calls" and entries[0].function.name == "paint"
        # instructor sends both: a reply of calls has no text that would have the form
        [formed] = create(**ask, tool_choice=named, temperature=0, response_format={"type": "json_object"}).choices
        assert formed.message.tool_calls[0].function == call.function
        bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "foo"}}}
        with pytest.raises(openai.BadRequestError, match="response_format"):
            create(**ask, tool_choice=named, response_format=bad)
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "stop"}}]}
        for choice in create(
            **ask, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, temperature=1.5, n=4, seed=1
        ).choices:
            assert {call.function.name for call in choice.message.tool_calls} == {"stop"}
        del tools[1]["function"]["parameters"]  # OpenAI's: a function without parameters
        stop = {"type": "function", "function": {"name": "stop"}}
        for choice in create(**ask, tool_choice=stop, temperature=1.5, n=3, seed=1).choices:
            assert [json.loads(call.function.arguments) for call in choice.message.tool_calls] == [{}]
        tools[0]["function"]["parameters"] = {"type": "object", "properties": {"x": {"not": {"type": "string"}}}}
        with pytest.raises(openai.BadRequestError, match="tools"):
            create(**ask, tool_choice="required")
