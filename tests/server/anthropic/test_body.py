"""Anthropic's words in OpenAI's."""

import pytest

from lullm.server.anthropic.body import MessagesBody
from lullm.server.anthropic.schema import Message, Thinking, Tool, ToolChoice
from lullm.server.anthropic.translation import openai_messages, openai_thinking, openai_tools
from lullm.server.wire import parse_body

CALL = {"id": "toolu_1", "type": "tool_use", "name": "weather", "input": {"city": "Zürich"}, "caller": None}


def test_a_call_and_its_result():
    messages = [
        {"role": "user", "content": "Is it cold?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "look it up", "signature": ""},
                {"type": "redacted_thinking", "data": "secret"},
                {"type": "text", "text": "I look.", "citations": None},
                CALL,
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "-3"}]},
                {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no such city", "is_error": True},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    function = {"name": "weather", "arguments": '{"city": "Zürich"}'}
    body = parse_body(MessagesBody, {"model": "m", "max_tokens": 1, "messages": messages}, [])
    assert openai_messages("be kind", body.messages) == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "Is it cold?"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "look it up",
            "tool_calls": [{"id": "toolu_1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "toolu_1", "content": "-3"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "Error: no such city"},
        {"role": "user", "content": "Well?"},
    ]


def test_documents_and_search_results_are_marked_texts():
    words = [{"type": "text", "text": "It is"}, {"type": "text", "text": "cold."}]
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "-3"}}
    named = plain | {"title": "Now", "context": "Zürich", "citations": {"enabled": False}}
    found = {"type": "search_result", "source": "https://a.example", "title": "Weather", "content": words}
    pieces = {"type": "document", "source": {"type": "content", "content": words}}
    file = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}
    question = {"type": "text", "text": "Is it?"}
    messages = [
        {"role": "user", "content": [named, pieces, question]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [plain, found, file]}]},
    ]
    told: list[str] = []
    body = parse_body(MessagesBody, {"model": "m", "max_tokens": 1, "messages": messages}, told)
    assert not told
    first, second = openai_messages(None, body.messages)
    assert first["content"].splitlines() == [
        *("<document>", "<title>Now</title>", "<context>Zürich</context>", "-3", "</document>"),
        *("<document>", "It is", "cold.", "</document>", "Is it?"),
    ]
    assert second["role"] == "tool" and second["content"].splitlines() == [
        *("<document>", "-3", "</document>"),
        *("<search_result>", "<source>https://a.example</source>", "<title>Weather</title>", "It is", "cold."),
        *("</search_result>", "[document left out: the result of a tool is text here]"),
    ]


def test_a_system_message_between_others():
    messages = [Message(role="user", content="a"), Message(role="system", content=[{"type": "text", "text": "b"}])]
    assert [m["role"] for m in openai_messages(None, messages)] == ["user", "system"]


@pytest.mark.parametrize(
    ("choice", "fields"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
            {"tool_choice": {"type": "function", "function": {"name": "f"}}, "parallel_tool_calls": False},
        ),
    ],
)
def test_tools(choice, fields):
    tool = Tool(name="f", description="does it", input_schema={"type": "object"}, strict=True)
    function = {"name": "f", "description": "does it", "parameters": {"type": "object"}, "strict": True}
    expected = {"tools": [{"type": "function", "function": function}]} | fields
    assert openai_tools([tool], choice and ToolChoice(**choice)) == expected


@pytest.mark.parametrize(
    ("thinking", "fields"),
    [
        ({"type": "adaptive"}, {}),
        ({"type": "disabled"}, {"enable_thinking": False}),
        (
            {"type": "enabled", "budget_tokens": 1024, "display": "omitted"},
            {
                "enable_thinking": True,
                "thinking_token_budget": 1024,
                "include_reasoning": False,
            },
        ),
    ],
)
def test_thinking(thinking, fields):
    assert openai_thinking(Thinking(**thinking)) == fields


def test_a_form_of_the_output():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    config = {"format": {"type": "json_schema", "schema": schema}}
    body = {"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "x"}], "output_config": config}
    assert parse_body(MessagesBody, body).translated(None).form().json == schema
