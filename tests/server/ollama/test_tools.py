"""Tools and thoughts in Ollama's dialect: an agent's loop with a scripted model."""

import json

import pytest
from kit.template.styles import QWEN_TOOLS

from lullm.server.ollama.translation import openai_messages


def add(x: int, y: int) -> str:
    """Adds.

    Args:
        x: one number
        y: the other
    """
    return str(x + y)


def clock() -> str:
    """Says the time."""
    return "noon"


TOOLS = {"add": add, "clock": clock}
HELLO = [{"role": "user", "content": "hello"}]


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


REPLIES = [
    "<think>\nboth\n</think>\n\n" + call("add", x=1, y=2) + "\n" + call("clock"),
    "One more.\n" + call("add", x=3, y=4),
    "<think>\ndone\n</think>\n\nIt is 7 at noon.",
]


def turn(client, stream, **fields):
    """The message of an answer, from one body or from lines."""
    answer = client.chat(model="scripted", stream=stream, **fields)
    if not stream:
        return answer.message.model_dump(exclude_none=True)
    message = {"role": "assistant", "content": "", "thinking": "", "tool_calls": []}
    for part in answer:
        message["content"] += part.message.content
        message["thinking"] += part.message.thinking or ""
        message["tool_calls"] += [one.model_dump() for one in part.message.tool_calls or ()]
    return {name: value for name, value in message.items() if value or name == "content"}


@pytest.mark.parametrize("stream", [False, True])
def test_agent(start, replying, connect, stream):
    """Answers go back as they came; Ollama's own calls have no ids, so that results find theirs by name and order."""
    engine = replying(QWEN_TOOLS, *REPLIES)
    client, messages, is_done = connect(start(engine)), list(HELLO), False
    while not is_done:
        message = turn(client, stream, messages=messages, tools=[add, clock])
        messages.append(message)
        calls = message.get("tool_calls", [])
        for one in calls:
            name, arguments = one["function"]["name"], one["function"]["arguments"]
            messages.append({"role": "tool", "tool_name": name, "content": TOOLS[name](**arguments)})
        is_done = not calls
    assert messages[1]["thinking"] == "both" and len(messages[1]["tool_calls"]) == 2
    assert messages[-1] == {"role": "assistant", "content": "It is 7 at noon.", "thinking": "done"}
    last = engine.prompts[-1]
    assert "<tool_response>\n3\n</tool_response>\n<tool_response>\nnoon\n</tool_response>" in last
    assert "One more.\n" + call("add", x=3, y=4) in last and "Adds." in last


@pytest.mark.parametrize(("think", "is_off"), [(None, False), (True, False), (False, True)])
def test_thinking(start, replying, connect, think, is_off):
    engine = replying(QWEN_TOOLS, "Yes" if is_off else "<think>\nso\n</think>\n\nYes")
    client = connect(start(engine))
    answer = client.generate(model="scripted", prompt="hello", think=think)
    assert (answer.response, answer.thinking) == ("Yes", None if is_off else "so")
    assert engine.prompts[0].endswith("<think>\n\n</think>\n\n") is is_off


def test_results_find_their_calls():
    def called(name, call_id=None):
        function = {"name": name, "arguments": {}}
        return {"function": function} if call_id is None else {"id": call_id, "function": function}

    def result(**fields):
        return {"role": "tool", "content": "x", **fields}

    messages = [
        {"role": "assistant", "content": "", "tool_calls": [called("a"), called("b", "own"), called("a")]},
        result(tool_name="a"),
        result(tool_call_id="own"),
        result(),
        result(tool_name="c"),
    ]
    assistant, *results = openai_messages(messages)
    ids = [call["id"] for call in assistant["tool_calls"]]
    assert len(set(ids)) == 3 and ids[1] == "own"
    assert [one["tool_call_id"] for one in results] == [ids[0], "own", ids[2], "call_unknown"]
    assert [one.get("name") for one in results] == ["a", "b", "a", "c"]


def test_calls_that_the_end_has_cut(start, replying, connect):
    """What is known of the arguments, whole and streamed."""
    raw = '<tool_call>\n{"name": "add", "arguments": {"x": 1, "y'
    client = connect(start(replying(QWEN_TOOLS, raw, raw)))
    for stream in (False, True):
        [one] = turn(client, stream, messages=HELLO, tools=[add])["tool_calls"]
        assert one["function"]["name"] == "add" and one["function"]["arguments"]["x"] == 1


@pytest.mark.parametrize(("choice", "has_tools"), [("auto", True), (None, True), ("none", False)])
def test_words_of_openais_in_clients_of_ollama(start, replying, choice, has_tools):
    """The AI SDK's provider says which tool to call, LangChain's JavaScript of which type a call is."""
    called = {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": {}}}]}
    tools = [{"type": "function", "function": {"name": "clock"}}]
    body = {"model": "scripted", "messages": [*HELLO, called], "tools": tools, "tool_choice": choice}
    engine = replying(QWEN_TOOLS, "Yes")
    with start(engine, unknown_fields="refuse").http() as http:
        assert http.post("/api/chat", json=body).status_code == 200
        refused = http.post("/api/chat", json=body | {"tool_choice": "sometimes"})
    assert ("<tools>" in engine.prompts[0]) is has_tools
    assert refused.status_code == 400 and "tool_choice" in refused.json()["error"]
