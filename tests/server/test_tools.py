"""Calls of tools and thoughts over HTTP, with the official client: a model whose replies are scripted."""

import json

import openai
import pytest
from kit.template.styles import CHATML, QWEN_TOOLS

from lullm import EngineConfig, SamplingParams
from lullm.errors import ConfigError
from lullm.types.request import CallerRequest, Conversation

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
    },
}
CLOCK = {"type": "function", "function": {"name": "clock"}}
HELLO = [{"role": "user", "content": "hello"}]


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


def allowed(mode, *names):
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


REPLIES = [
    "<think>\nboth\n</think>\n\n" + call("add", x=1, y=2) + "\n" + call("clock"),
    "One more.\n" + call("add", x=3, y=4),
    "<think>\ndone\n</think>\n\nIt is 7 at noon.",
]


def streamed(chunks):
    """The message that a stream's deltas are together, and its finish reason."""
    message, reason = {"role": None, "content": "", "reasoning": "", "tool_calls": []}, None
    for chunk in chunks:
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_unset=True)
            message["role"] = delta.get("role") or message["role"]
            message["content"] += delta.get("content") or ""
            message["reasoning"] += delta.get("reasoning", "")
            assert delta.get("reasoning") == delta.get("reasoning_content")
            for entry in delta.get("tool_calls", []):
                if entry["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(
                        {"id": entry["id"], "type": entry["type"], "function": entry["function"]}
                    )
                else:
                    message["tool_calls"][entry["index"]]["function"]["arguments"] += entry["function"]["arguments"]
            reason = choice.finish_reason or reason
    return {name: value for name, value in message.items() if value or name == "content"}, reason


def turn(client, stream, **fields):
    answer = client.chat.completions.create(model="scripted", stream=stream, **fields)
    if stream:
        return streamed(answer)
    [choice] = answer.choices
    return choice.message.model_dump(exclude_unset=True), choice.finish_reason


@pytest.mark.parametrize("stream", [False, True])
def test_agent(start, replying, stream):
    """An agent's loop: each answer is sent back with its null content, and with the tools' results."""
    engine = replying(QWEN_TOOLS, *REPLIES)
    tools = {"add": lambda x, y: str(x + y), "clock": lambda: "noon"}
    messages, reasons = list(HELLO), []
    with start(engine).openai() as client:
        while not reasons or reasons[-1] == "tool_calls":
            message, reason = turn(client, stream, messages=messages, tools=[ADD, CLOCK])
            message["content"] = message["content"] or None
            reasons.append(reason)
            messages.append(message)
            for one in message.get("tool_calls") or []:
                result = tools[one["function"]["name"]](**json.loads(one["function"]["arguments"]))
                messages.append({"role": "tool", "tool_call_id": one["id"], "content": result})
    assert reasons == ["tool_calls", "tool_calls", "stop"]
    assert messages[-1]["content"] == "It is 7 at noon." and messages[-1]["reasoning"] == "done"
    assert messages[1]["content"] is None and messages[1]["reasoning"] == "both"
    last = engine.prompts[-1]
    assert last.endswith(
        "<|im_start|>assistant\n<think>\nboth\n</think>\n\n" + REPLIES[0].partition("</think>\n\n")[2] + "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n3\n</tool_response>\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n" + REPLIES[1] + "<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert '"description": "Adds."' in last


@pytest.mark.parametrize(
    ("sent", "seen"),
    [('{"x": 1, "y": 2', {"x": 1, "y": 2}), ('{"text": "so far', {"text": "so far"}), ("{", {}), ("{x", {})],
)
def test_a_call_that_was_cut_can_be_sent_back(start, replying, sent, seen):
    """It was refused as "not JSON", again and again: the agent could not go on."""
    engine = replying(QWEN_TOOLS, "Yes")
    cut = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": sent}}],
    }
    with start(engine).openai() as client:
        turn(client, False, messages=[*HELLO, cut, {"role": "tool", "tool_call_id": "1", "content": "?"}], tools=[ADD])
    assert call("add", **seen) in engine.prompts[-1]


@pytest.mark.parametrize("sent", ["x", "[1"])
def test_arguments_that_no_reply_has(start, replying, sent):
    cut = {
        "role": "assistant",
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": sent}}],
    }
    with start(replying(QWEN_TOOLS, "Yes")).openai() as client, pytest.raises(openai.BadRequestError):
        turn(client, False, messages=[*HELLO, cut, {"role": "tool", "tool_call_id": "1", "content": "?"}], tools=[ADD])


def test_a_reply_is_the_same_whole_and_streamed(start, replying):
    raw = REPLIES[0] + " and " + call("add", x=9)
    with start(replying(QWEN_TOOLS, raw, raw)).openai() as client:
        fields = {"messages": HELLO, "tools": [ADD, CLOCK]}
        (whole, reason), (pieces, same) = (turn(client, stream, **fields) for stream in (False, True))
    assert reason == same == "tool_calls"
    for message in (whole, pieces):
        for one in message["tool_calls"]:
            assert one.pop("id").startswith("call_")
    assert whole["reasoning_content"] == whole["reasoning"] == "both" == pieces["reasoning"]
    assert whole["tool_calls"] == pieces["tool_calls"] and whole["content"] == pieces["content"] == "and"


def test_without_tools_calls_are_text(start, replying):
    raw = call("clock")
    with start(replying(QWEN_TOOLS, raw, raw, raw)).openai() as client:
        assert turn(client, False, messages=HELLO)[0]["content"] == raw
        message, reason = turn(client, False, messages=HELLO, tools=[CLOCK], tool_choice="none")
        assert message["content"] == raw and reason == "stop"
        assert turn(client, True, messages=HELLO, tools=[CLOCK])[0]["tool_calls"][0]["function"]["name"] == "clock"


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools(start, replying, mode):
    """The template gets all tools, and the calls are guided to the allowed ones."""
    engine = replying(QWEN_TOOLS, call("clock"))
    with start(engine).openai() as client:
        message, _ = turn(client, False, messages=HELLO, tools=[ADD, CLOCK], tool_choice=allowed(mode, "clock"))
    assert [one["function"]["name"] for one in message["tool_calls"]] == ["clock"]
    assert '"name": "add"' in engine.prompts[0] and '"name": "clock"' in engine.prompts[0]
    [request] = engine.requests
    assert [tool.name for tool in request.reply.tools] == ["clock"] and request.guide is not None


def test_one_call_at_most(start, replying):
    raw = call("clock") + call("clock")
    with start(replying(QWEN_TOOLS, raw, raw)).openai() as client:
        for stream in (False, True):
            fields = {"messages": HELLO, "tools": [CLOCK], "parallel_tool_calls": False}
            assert len(turn(client, stream, **fields)[0]["tool_calls"]) == 1


def test_thoughts(start, replying):
    raw = "<think>\nso\n</think>\n\nYes"
    with start(replying(QWEN_TOOLS, *[raw] * 5)).openai() as client:
        body = {"model": "scripted", "messages": HELLO}
        answer = client.chat.completions.create(**body)
        assert answer.choices[0].message.reasoning == "so" and answer.choices[0].message.content == "Yes"
        assert answer.usage.completion_tokens_details.reasoning_tokens == len("\nso\n")
        assert answer.usage.completion_tokens == len(raw)
        *_, last = client.chat.completions.create(**body, stream=True, stream_options={"include_usage": True})
        assert last.usage.completion_tokens_details.reasoning_tokens == len("\nso\n")
        message = turn(client, True, messages=HELLO, extra_body={"include_reasoning": False})[0]
        assert message == {"role": "assistant", "content": "Yes"}
        answer = client.chat.completions.create(**body, n=2)
        assert [choice.message.reasoning for choice in answer.choices] == ["so", "so"]


@pytest.mark.parametrize(
    "fields",
    [{"enable_thinking": False}, {"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}],
)
def test_thinking_off(start, replying, fields):
    engine = replying(QWEN_TOOLS, "Yes")
    with start(engine).http() as http:
        answer = http.post("/v1/chat/completions", json={"messages": HELLO} | fields).json()
    assert answer["choices"][0]["message"]["content"] == "Yes"
    assert engine.prompts[0].endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


def test_a_budget(start, replying):
    engine = replying(QWEN_TOOLS, "Yes")
    with start(engine).http() as http:
        body = {"messages": HELLO, "thinking_token_budget": 7}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        assert engine.seen[-1][1].thinking_token_budget == 7
        refused = http.post("/v1/completions", json={"prompt": "x", "thinking_token_budget": 7})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "thinking_token_budget"


def test_parsers_can_be_named(start, replying):
    raw = "<think>so</think>" + call("clock")
    engine = replying(CHATML, raw, raw, tool_call_parser="hermes", reasoning_parser="none")
    with start(engine).openai() as client:
        message, _ = turn(client, False, messages=HELLO, tools=[CLOCK])
        assert message["content"] == "<think>so</think>" and len(message["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tools": [{"type": "retrieval"}]}, "tools"),
        ({"tools": [ADD, ADD]}, "tools"),
        ({"tools": [ADD], "tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": allowed("auto", "sub")}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": allowed("none", "add")}, "tool_choice"),
        ({"tools": [ADD], "tool_choice": allowed("auto")}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "none", "enable_thinking": True}, "enable_thinking"),
    ],
)
def test_refused(start, replying, fields, param):
    with start(replying(QWEN_TOOLS)).http() as http:
        response = http.post("/v1/chat/completions", json={"messages": HELLO} | fields)
    assert response.status_code == 400 and response.json()["error"]["param"] == param


def test_a_template_without_calls(start, replying):
    with start(replying(CHATML)).openai() as client, pytest.raises(openai.BadRequestError, match="tool-call-parser"):
        turn(client, False, messages=HELLO, tools=[ADD])


def test_thinking_off_for_all(replying):
    """--no-think is the default of requests that do not say; a template without a switch for it is refused."""
    engine = replying(QWEN_TOOLS, think=False)
    options = ({}, {"enable_thinking": True})
    prompts = [
        engine.input_processor.process(CallerRequest("r", Conversation(HELLO, one), SamplingParams())).prompt
        for one in options
    ]
    assert [prompt.endswith("</think>\n\n") for prompt in prompts] == [True, False]
    with pytest.raises(ConfigError, match="enable_thinking"):
        replying(CHATML, think=False)


def test_variables_of_the_template_for_all(start, replying):
    """vLLM's --default-chat-template-kwargs: what a request says goes first."""
    engine = replying(QWEN_TOOLS, "Yes", "Yes", default_chat_template_kwargs='{"enable_thinking": false}')
    with start(engine).http() as http:
        for wish in ({}, {"chat_template_kwargs": {"enable_thinking": True}}):
            assert http.post("/v1/chat/completions", json={"messages": HELLO} | wish).status_code == 200
    assert [prompt.endswith("</think>\n\n") for prompt in engine.prompts] == [True, False]
    for wrong, message in (
        ({"default_chat_template_kwargs": '{"tools": []}'}, "tools is a request's own"),
        ({"default_chat_template_kwargs": "[]"}, "must be a JSON object"),
        ({"default_chat_template_kwargs": '{"thinking": true}', "think": True}, "give one of them"),
    ):
        with pytest.raises(ConfigError, match=message):
            replying(QWEN_TOOLS, **wrong)
    said = EngineConfig.from_options({"default_chat_template_kwargs": {"enable_thinking": False}})
    assert said.default_chat_template_kwargs == '{"enable_thinking": false}', "a dict, as in scripts for vLLM"


def deep_schema(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def test_the_field_that_is_wrong_is_named(start, replying):
    """Not the other one, not a field of another name, and no line of a grammar that nobody has written."""
    bad, good = {"type": "foo"}, {"type": "object"}
    deep = deep_schema(60)
    for parameters, form, message in (
        (bad, None, "tools: Invalid type: foo"),
        (deep, None, "tools: json is nested more than 100 deep"),
        (good, bad, "response_format: Invalid type: foo"),
    ):
        tool = {"type": "function", "function": {"name": "f", "parameters": parameters, "strict": True}}
        body = {"messages": HELLO, "tools": [tool]}
        if form is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": form}}
        with start(replying(QWEN_TOOLS)).http() as http:
            error = http.post("/v1/chat/completions", json=body).json()["error"]
        assert (error["message"], error["param"]) == (message, message.partition(":")[0])


def test_messages_are_bounded(start, replying):
    with start(replying(CHATML)).http() as http:
        response = http.post("/v1/chat/completions", json={"messages": HELLO * 16385})
    error = response.json()["error"]
    assert response.status_code == 400 and error["param"] == "messages" and "at most 16384 items" in error["message"]
