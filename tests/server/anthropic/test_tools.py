"""Tools and thoughts in Anthropic's dialect: an agent's loop with a scripted model."""

import json

import anthropic
import pytest
from anthropic.types import Message
from kit.template.styles import CHATML, QWEN_TOOLS, SYSTEM_FIRST

ADD = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}, "cache_control": {"type": "ephemeral"}}
HELLO = [{"role": "user", "content": "hello"}]
ASK = {"model": "scripted", "max_tokens": 500, "messages": HELLO}


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


REPLIES = [
    "<think>\nboth\n</think>\n\n" + call("add", x=1, y=2) + "\n" + call("clock"),
    "One more.\n" + call("add", x=3, y=4),
    "<think>\ndone\n</think>\n\nIt is 7 at noon.",
]


@pytest.fixture
def connect():
    clients = []

    def connect(server):
        clients.append(anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def turn(client, stream, **fields):
    if not stream:
        return client.messages.create(**fields)
    with client.messages.stream(**fields) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_agent(start, replying, connect, stream):
    engine = replying(QWEN_TOOLS, *REPLIES)
    tools = {"add": lambda x, y: str(x + y), "clock": lambda: "noon"}
    client, messages, answers = connect(start(engine)), list(HELLO), []
    while not answers or answers[-1].stop_reason == "tool_use":
        answers.append(turn(client, stream, **ASK | {"messages": messages}, tools=[ADD, CLOCK]))
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": tools[block.name](**block.input)}
            for block in answers[-1].content
            if block.type == "tool_use"
        ]
        messages.append({"role": "assistant", "content": answers[-1].content})
        messages.append({"role": "user", "content": results})
    kinds = [[block.type for block in answer.content] for answer in answers]
    assert kinds[0][0] == "thinking" and kinds[0][-2:] == ["tool_use", "tool_use"]
    assert kinds[1:] == [["text", "tool_use"], ["thinking", "text"]]
    assert answers[-1].stop_reason == "end_turn" and answers[-1].content[1].text == "It is 7 at noon."
    assert answers[0].content[0].thinking == "both"
    assert answers[0].usage.output_tokens_details.thinking_tokens == len("\nboth\n")
    last = engine.prompts[-1]
    assert "<tool_response>\n3\n</tool_response>\n<tool_response>\nnoon\n</tool_response>" in last
    assert call("add", x=3, y=4) in last and '"description": "Adds."' in last


@anthropic.beta_tool
def add(x: int, y: int) -> str:
    """Adds."""
    return str(x + y)


def test_the_clients_own_loop(start, replying, connect):
    """It asks for a thread that the server keeps; ignored, its second request would have the results alone."""
    engine = replying(QWEN_TOOLS, call("add", x=1, y=2), "It is 3.")
    *_, last = connect(start(engine)).beta.messages.tool_runner(**ASK, tools=[add])
    assert last.content[0].text == "It is 3."
    assert "hello" in engine.prompts[-1] and "<tool_response>\n3\n</tool_response>" in engine.prompts[-1]


@pytest.mark.parametrize("template", [QWEN_TOOLS, SYSTEM_FIRST])
def test_reminders(start, replying, connect, template):
    """Claude Code has the system speak behind the user, which some chat templates refuse and others leave out."""
    engine = replying(template, "Yes")
    messages = [*HELLO, {"role": "system", "content": "There are skills."}]
    connect(start(engine)).messages.create(**ASK | {"messages": messages}, system="Be brief.")
    first, second, third = (engine.prompts[0].index(text) for text in ("Be brief.", "hello", "There are skills."))
    assert first < second < third


def test_whole_and_streamed_are_one(start, replying, connect):
    raw = REPLIES[0] + " and " + call("add", x=9)
    client = connect(start(replying(QWEN_TOOLS, raw, raw)))
    whole, streamed = (turn(client, stream, **ASK, tools=[ADD, CLOCK]) for stream in (False, True))
    Message.model_validate(json.loads(whole.model_dump_json(exclude_unset=True)), strict=True)
    for message in (whole, streamed):
        for block in message.content:
            if block.type == "tool_use":
                block.id = ""
    fields = {"type", "text", "thinking", "name", "input"}
    assert [b.model_dump(include=fields) for b in whole.content] == [
        b.model_dump(include=fields) for b in streamed.content
    ]
    assert whole.stop_reason == streamed.stop_reason == "tool_use" and whole.usage == streamed.usage


@pytest.mark.parametrize(
    ("thinking", "kinds"),
    [
        (None, ["thinking", "text"]),
        ({"type": "adaptive"}, ["thinking", "text"]),
        ({"type": "adaptive", "display": "omitted"}, ["text"]),
        ({"type": "disabled"}, ["text"]),
    ],
)
def test_thinking(start, replying, connect, thinking, kinds):
    is_off = thinking == {"type": "disabled"}
    engine = replying(QWEN_TOOLS, "Yes" if is_off else "<think>\nso\n</think>\n\nYes")
    wish = {} if thinking is None else {"thinking": thinking}
    message = connect(start(engine)).messages.create(**ASK, **wish)
    assert [block.type for block in message.content] == kinds and message.content[-1].text == "Yes"
    assert engine.prompts[0].endswith("<think>\n\n</think>\n\n") is is_off


def test_budget(start, replying, connect):
    """It reaches the engine; a model that does not think keeps within it anyway."""
    wish = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    for template, budget in ((QWEN_TOOLS, 1024), (CHATML, None)):
        engine = replying(template, "Yes")
        assert connect(start(engine)).messages.create(**ASK, **wish).content[-1].text == "Yes"
        assert engine.seen[-1][1].thinking_token_budget == budget


def test_a_tool_that_must_not_be_called(start, replying, connect):
    client = connect(start(replying(QWEN_TOOLS, call("clock"), call("clock") + call("clock"))))
    [block] = client.messages.create(**ASK, tools=[CLOCK], tool_choice={"type": "none"}).content
    assert block.text == call("clock")
    [one] = client.messages.create(
        **ASK, tools=[CLOCK], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    ).content
    assert one.type == "tool_use"


@pytest.mark.parametrize(
    ("template", "fields", "word"),
    [
        (QWEN_TOOLS, {"tools": [ADD, ADD]}, "add"),
        (QWEN_TOOLS, {"tools": [ADD], "tool_choice": {"type": "tool", "name": "sub"}}, "sub"),
        (QWEN_TOOLS, {"tools": [ADD], "tool_choice": {"type": "tool"}}, "tool_choice"),
        (QWEN_TOOLS, {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "type 'audio' is not supported"),
        (QWEN_TOOLS, {"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        (CHATML, {"tools": [ADD]}, "tool-call-parser"),
    ],
)
def test_refused(start, replying, connect, template, fields, word):
    with pytest.raises(anthropic.BadRequestError, match=word):
        connect(start(replying(template))).messages.create(**ASK | fields)
