"""Tools and thoughts as items: their order, an agent's loop with a scripted model, and what items are as messages."""

import json

import pytest
from kit.template.events import REPLY
from kit.template.styles import QWEN_TOOLS
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from lullm.server.openai.responses.body import ResponsesBody
from lullm.server.openai.responses.item_stream import ItemStream
from lullm.server.openai.responses.tool import CustomTool, input_of
from lullm.server.openai.responses.translation import openai_messages
from lullm.server.wire import parse_body

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
    "strict": False,
}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}, "strict": False}


def call(name, **arguments):
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


REPLIES = [
    "<think>\nboth\n</think>\n\n" + call("add", x=1, y=2) + "\n" + call("clock"),
    "One more.\n" + call("add", x=3, y=4),
    "<think>\ndone\n</think>\n\nIt is 7 at noon.",
]


def turn(client, stream, **fields):
    if not stream:
        return client.responses.create(model="scripted", **fields)
    with client.responses.stream(model="scripted", **fields) as events:
        return events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_agent(start, replying, stream):
    engine = replying(QWEN_TOOLS, *REPLIES)
    tools = {"add": lambda x, y: str(x + y), "clock": lambda: "noon"}
    items, answers, calls = [{"role": "user", "content": "hello"}], [], [None]
    with start(engine).openai() as client:
        while calls:
            answers.append(turn(client, stream, input=items, tools=[ADD, CLOCK], store=False))
            calls = [item for item in answers[-1].output if item.type == "function_call"]
            items += [item.model_dump(exclude_unset=True) for item in answers[-1].output]
            for one in calls:
                result = tools[one.name](**json.loads(one.arguments))
                items.append({"type": "function_call_output", "call_id": one.call_id, "output": result})
    kinds = [[item.type for item in answer.output if getattr(item, "content", 1)] for answer in answers]
    assert kinds[0][0] == "reasoning" and kinds[0][-2:] == ["function_call", "function_call"]
    assert kinds[1:] == [["message", "function_call"], ["reasoning", "message"]]
    assert answers[-1].output_text == "It is 7 at noon."
    assert answers[0].output[0].content[0].text == "both"
    assert answers[0].usage.output_tokens_details.reasoning_tokens == len("\nboth\n")
    assert answers[0].tools[0].name == "add"
    last = engine.prompts[-1]
    assert "<tool_response>\n3\n</tool_response>\n<tool_response>\nnoon\n</tool_response>" in last
    assert "One more.\n" + call("add", x=3, y=4) + "<|im_end|>" in last and '"description": "Adds."' in last


@pytest.mark.parametrize("stream", [False, True])
def test_functions_of_a_namespace(start, replying, stream):
    """As Codex groups those for its agents: the model sees one list of names, the client both parts."""
    space = {"type": "namespace", "name": "sums", "description": "All sums.", "tools": [ADD, CLOCK]}
    engine = replying(QWEN_TOOLS, call("sums__add", x=1, y=2) + call("clock"), "It is 3.")
    with start(engine).openai() as client:
        answer = turn(client, stream, input="hello", tools=[CLOCK, space])
        first, second = answer.output
        results = [{"type": "function_call_output", "call_id": first.call_id, "output": "3"}]
        sent = [item.model_dump(exclude_none=True) for item in answer.output]
        turn(client, stream, input=[{"role": "user", "content": "hello"}, *sent, *results], tools=[CLOCK, space])
    assert (first.namespace, first.name, second.namespace, second.name) == ("sums", "add", None, "clock")
    assert answer.tools[1].model_dump(exclude_none=True) == space
    assert call("sums__add", x=1, y=2) in engine.prompts[1] and "sums__clock" in engine.prompts[0]
    assert engine.prompts[0].count("All sums.") == 1 and "All sums.\\n\\nAdds." in engine.prompts[0]


PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /[a-z]+/"},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("given", ['*** Begin\n-"é\\n"\n+🐈', ""])
def test_custom_tools(start, replying, stream, given):
    """As Codex edits files: the model calls a function of one string, the client gets the string itself."""
    space = {"type": "namespace", "name": "files", "tools": [PATCH | {"format": None}]}
    engine = replying(QWEN_TOOLS, call("patch", input=given) + call("files__patch", input="b"), "Done.")
    fields = {"tools": [CLOCK, PATCH, space]}
    with start(engine).openai() as client:
        answer = turn(client, stream, input="hello", **fields)
        calls = [item for item in answer.output if item.type == "custom_tool_call"]
        sent = [item.model_dump(exclude_unset=True) for item in answer.output]
        results = [{"type": "custom_tool_call_output", "call_id": one.call_id, "output": "ok"} for one in calls]
        last = turn(client, stream, input=[{"role": "user", "content": "hello"}, *sent, *results], **fields)
    assert [(one.namespace, one.name, one.input) for one in calls] == [(None, "patch", given), ("files", "patch", "b")]
    assert answer.tools[1].format.definition == "start: /[a-z]+/"
    assert "Edits files.\\n\\nThe input must match this lark grammar:\\nstart: /[a-z]+/" in engine.prompts[0]
    assert json.dumps({"input": given}, ensure_ascii=False) in engine.prompts[1] and last.output_text == "Done."
    assert engine.prompts[1].count("<tool_response>\nok\n</tool_response>") == 2


def test_events_of_a_custom_call(start, replying):
    with (
        start(replying(QWEN_TOOLS, call("patch", input="a\nb"))).openai() as client,
        client.responses.stream(model="scripted", input="hello", tools=[PATCH]) as stream,
    ):
        events = [event for event in stream if "custom" in event.type]
    assert [event.type.split(".")[-1] for event in events] == ["delta", "done"]
    assert events[0].delta == events[1].input == "a\nb" and events[0].item_id.startswith("ctc_")


@pytest.mark.parametrize("arguments", ["", "plain", '["a"]', '{"input": 1}', '{"input": "cut'])
def test_input_of_another_shape_is_as_written(arguments):
    assert input_of(arguments) == arguments


def test_a_regular_expression_binds_the_input():
    form = {"type": "grammar", "syntax": "regex", "definition": "[0-9]+"}
    tool = CustomTool.model_validate(PATCH | {"format": form})
    assert tool.function()["parameters"]["properties"]["input"] == {"type": "string", "pattern": "[0-9]+"}


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_that_come_back_sealed(start, replying, stream):
    """Clients of a server that keeps nothing (the AI SDK with store=false) leave thoughts in the clear out."""
    engine = replying(QWEN_TOOLS, "<think>\nh-h\n</think>\n\n" + call("clock"), "noon")
    items = [{"role": "user", "content": "hello"}]
    fields = {"tools": [CLOCK], "store": False, "include": ["reasoning.encrypted_content"]}
    with start(engine).openai() as client:
        thoughts, called = turn(client, stream, input=items, **fields).output
        items += [
            {"type": "reasoning", "id": thoughts.id, "summary": [], "encrypted_content": thoughts.encrypted_content},
            called.model_dump(exclude_none=True),
            {"type": "function_call_output", "call_id": called.call_id, "output": "12"},
        ]
        turn(client, stream, input=items, **fields)
    assert "<think>\nh-h\n</think>" in engine.prompts[1]


@pytest.mark.parametrize("content", ["gAAAAABo", "lullm:!", "lullm:/w==", ""])
def test_seals_of_others_say_nothing(content):
    items = [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "encrypted_content": content}]
    body = parse_body(ResponsesBody, {"model": "m", "input": items})
    assert openai_messages(None, body.input)[0]["reasoning_content"] == "hm"


def test_whole_is_strict(start, replying):
    with start(replying(QWEN_TOOLS, REPLIES[0])).http() as http:
        body = {"model": "scripted", "input": "hello", "tools": [ADD, CLOCK], "tool_choice": "auto"}
        answer = http.post("/v1/responses", json=body).json()
    Response.model_validate(answer, strict=True)
    assert [item["status"] for item in answer["output"]] == ["completed"] * len(answer["output"])


def test_effort(start, replying):
    engine = replying(QWEN_TOOLS, "Yes")
    with start(engine).openai() as client:
        client.responses.create(model="scripted", input="hello", reasoning={"effort": "none"})
    assert engine.prompts[0].endswith("<think>\n\n</think>\n\n")


def test_each_item_begins_and_ends_once_in_order():
    stream = ItemStream("1", {}, seals=False)
    events = [event for piece in REPLY for event in stream.feed([piece], [])] + list(stream.close("incomplete"))
    for number, event in enumerate(events):
        TypeAdapter(ResponseStreamEvent).validate_python(event | {"sequence_number": number}, strict=True)
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == stream.items and [item["id"] for item in added] == [item["id"] for item in done]
    assert len({item["id"] for item in done}) == 5
    assert all(item["status"] == "in_progress" for item in added)
    assert [item["status"] for item in done] == ["completed"] * 4 + ["incomplete"]
    assert [item["type"] for item in done] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert done[0]["content"] == [{"type": "reasoning_text", "text": "let me see"}] and done[0]["summary"] == []
    assert done[2]["arguments"] == '{"city": "Paris"}' and done[2]["call_id"] == "call_1"
    assert done[3]["arguments"] == ""
    open_index = None
    for event in events:
        if event["type"] == "response.output_item.added":
            assert open_index is None
            open_index = event["output_index"]
        assert event["output_index"] == open_index
        if event["type"] == "response.output_item.done":
            open_index = None
    assert open_index is None


def test_items_as_messages():
    items = [
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "one"},
        {"type": "function_call_output", "call_id": "2", "output": [{"type": "input_text", "text": "two"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "yes"},
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"},
    ]

    def called(call_id, name):
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    body = parse_body(ResponsesBody, {"model": "m", "input": items})
    assert openai_messages("be kind", body.input) == [
        {"role": "system", "content": "be kind"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "hm",
            "tool_calls": [called("1", "f"), called("2", "g")],
        },
        {"role": "tool", "tool_call_id": "1", "content": "one"},
        {"role": "tool", "tool_call_id": "2", "content": "two"},
        {"role": "assistant", "content": "no"},
        {"role": "assistant", "content": "yes"},
    ]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ({"type": "function", "name": "add"}, {"type": "function", "function": {"name": "add"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]},
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "add"}}]},
            },
        ),
    ],
)
def test_tools_and_form(choice, expected):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    fields = {"model": "m", "input": "x", "tools": [ADD], "tool_choice": choice, "parallel_tool_calls": False}
    form = {"type": "json_schema", "name": "x", "schema": schema, "strict": True}
    body = parse_body(ResponsesBody, fields | {"text": {"format": form}}).translated(None)
    assert body.model_dump(exclude_none=True)["tool_choice"] == expected and body.parallel_tool_calls is False
    function = {name: ADD[name] for name in ("name", "description", "parameters", "strict")}
    assert body.tools == [{"type": "function", "function": function}]
    assert body.form().json == schema
    fields = {"model": "m", "input": "x", "structured_outputs": {"regex": "[0-9]+"}}
    assert parse_body(ResponsesBody, fields).translated(None).form().regex == "[0-9]+"
