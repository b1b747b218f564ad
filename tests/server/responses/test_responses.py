"""/v1/responses with the official client, over a real socket; every body and event is validated strictly."""

import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

SCRIPT = "0:the quick brown fox"
PROMPT = "<|user|>hello\n<|assistant|>"
BODY = {"model": "scripted", "input": "hello"}
EVENT = TypeAdapter(ResponseStreamEvent)
OPENINGS = ["response.created", "response.in_progress"]


def read_typed(response):
    """The data of a stream's events, whose names are their types and whose numbers have no gaps."""
    found = []
    for line in response.iter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            found.append(json.loads(line.removeprefix("data: ")))
            assert found[-1]["type"] == name
            EVENT.validate_python(found[-1], strict=True)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def test_whole(client, http):
    answer = client.responses.create(**BODY, temperature=0.25, metadata={"a": "b"}, instructions="be kind")
    assert answer.id.startswith("resp-") and (answer.status, answer.object) == ("completed", "response")
    [item] = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert answer.output_text == SCRIPT and answer.error is None
    usage = answer.usage
    assert usage.input_tokens == len("<|system|>be kind\n" + PROMPT) and usage.input_tokens_details.cached_tokens == 3
    assert (usage.output_tokens, usage.total_tokens) == (21, usage.input_tokens + 21)
    assert (answer.temperature, answer.metadata, answer.instructions) == (0.25, {"a": "b"}, "be kind")
    raw = http.post("/v1/responses", json=BODY | {"store": True}).json()
    Response.model_validate(raw, strict=True)
    assert raw["store"] is False  # nothing is kept


def test_stream_has_the_official_order(http):
    with http.stream("POST", "/v1/responses", json=BODY | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_typed(response)
    names = [event["type"] for event in events]
    assert names[:4] == [*OPENINGS, "response.output_item.added", "response.content_part.added"]
    ends = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert names[-4:] == [f"response.{name}" for name in ends]
    assert set(names[4:-4]) == {"response.output_text.delta"}
    assert "".join(event["delta"] for event in events[4:-4]) == SCRIPT == events[-4]["text"]
    last = events[-1]["response"]
    whole = http.post("/v1/responses", json=BODY).json()
    for answer in (last, whole):
        for name in ("id", "created_at", "completed_at"):
            del answer[name]
        del answer["output"][0]["id"]
    assert last == whole


def test_stream_of_the_client(client):
    with client.responses.stream(**BODY) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == SCRIPT


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_cut(http, stream):
    body = BODY | {"max_output_tokens": 5, "stream": stream}
    if stream:
        with http.stream("POST", "/v1/responses", json=body) as response:
            *_, last = read_typed(response)
        assert last["type"] == "response.incomplete"
        answer = last["response"]
    else:
        answer = http.post("/v1/responses", json=body).json()
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert answer["output"][0]["status"] == "incomplete" and answer["output"][0]["content"][0]["text"] == "0:the"
    Response.model_validate(answer, strict=True)


@pytest.mark.parametrize("fields", [{"top_logprobs": 2}, {"include": ["message.output_text.logprobs"]}])
@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(http, stream, fields):
    body = BODY | fields | {"max_output_tokens": 2, "stream": stream}
    if stream:
        with http.stream("POST", "/v1/responses", json=body) as response:
            events = read_typed(response)
        deltas = [row for event in events if event["type"].endswith("text.delta") for row in event["logprobs"]]
        answer = events[-1]["response"]
        assert deltas == answer["output"][0]["content"][0]["logprobs"]
    else:
        answer = http.post("/v1/responses", json=body).json()
    Response.model_validate(answer, strict=True)
    rows = answer["output"][0]["content"][0]["logprobs"]
    assert [row["token"] for row in rows] == ["0", ":"]
    assert [len(row["top_logprobs"]) for row in rows] == [fields.get("top_logprobs", 0)] * 2


def test_an_answer_goes_back_into_the_input(client):
    first = client.responses.create(**BODY)
    items = [
        {"role": "developer", "content": "be kind"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        *first.output,
        {"type": "message", "role": "user", "content": "c"},
    ]
    expected = f"<|system|>be kind\n<|user|>a\nb\n<|assistant|>{SCRIPT}\n<|user|>c\n<|assistant|>"
    assert client.responses.create(model="scripted", input=items).usage.input_tokens == len(expected)
    assert client.responses.input_tokens.count(model="scripted", input=items).input_tokens == len(expected)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp-1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"text": {"verbosity": "low"}}, "text"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"top_k": "2"}, "top_k"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"input": []}, "input"),
        ({"input": "x" * 600}, "input"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"reasoning": {"effort": "hard"}}, "reasoning"),
        ({"keep_alive": "soon"}, "keep_alive"),
    ],
)
def test_refused(http, fields, param):
    for stream in (False, True):
        response = http.post("/v1/responses", json=BODY | fields | {"stream": stream})
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text


def test_vllms_fields_reach_the_engine(http, server):
    fields = {"top_k": 7, "min_p": 0.1, "seed": 3, "stop": ("x",), "presence_penalty": 0.5, "frequency_penalty": 0.25}
    fields |= {"repetition_penalty": 1.5, "ignore_eos": True, "skip_special_tokens": False}
    fields |= {"include_stop_str_in_output": True, "stop_token_ids": (5,)}
    more = {"logit_bias": {"7": 1.5}, "request_id": "mine"}
    answer = http.post("/v1/responses", json=BODY | fields | more)
    assert answer.status_code == 200, answer.text
    assert answer.json()["id"] == "resp-mine" and "X-Lullm-Ignored" not in answer.headers
    params = server.engine.seen[-1][1]
    assert {name: getattr(params, name) for name in fields} == fields
    assert params.logit_bias == {7: 1.5}


def test_nothing_is_kept(client):
    answer = client.responses.create(**BODY)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="not kept"):
            call(answer.id)
    with pytest.raises(openai.NotFoundError, match="no such endpoint") as raised:
        client.responses.compact(model="scripted", input="hi")
    assert raised.value.code == "not_found"
    with pytest.raises(openai.BadRequestError, match=r"input\.0: an item_reference .*store=false"):
        client.responses.create(model="scripted", input=[{"type": "item_reference", "id": "rs_1"}])


def test_a_failure_behind_the_first_event(start, scripted):
    body = {"model": "scripted", "input": "crash", "stream": True}
    with start(scripted()).http() as http, http.stream("POST", "/v1/responses", json=body) as response:
        *_, error, failed = read_typed(response)
    assert error["type"] == "error" and error["code"] == "engine_failed"
    assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
