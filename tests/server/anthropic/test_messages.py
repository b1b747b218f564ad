"""/v1/messages with the official client, over a real socket; every body and event is validated strictly."""

import json

import anthropic
import pytest
from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from pydantic import TypeAdapter

SCRIPT = "0:the quick brown fox"
USER = [{"role": "user", "content": "hello"}]
PROMPT = "<|user|>hello\n<|assistant|>"
BODY = {"model": "scripted", "max_tokens": 100, "messages": USER}
EVENT = TypeAdapter(RawMessageStreamEvent)


def document(**source):
    return {"type": "document", "source": source}


CITED = document(type="text", data="x") | {"citations": {"enabled": True}}


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=20) as client:
        yield client


def read_typed(response):
    """[(name, data)] of a stream's events."""
    found = []
    for line in response.iter_lines():
        if line.startswith("event: "):
            found.append([line.removeprefix("event: ")])
        elif line.startswith("data: "):
            found[-1].append(json.loads(line.removeprefix("data: ")))
    return found


def test_whole(client, http):
    message = client.messages.create(**BODY)
    assert message.id.startswith("msg-") and message.model == "scripted"
    [block] = message.content
    assert (block.type, block.text) == ("text", SCRIPT)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens) == (len(PROMPT) - 3, 3)
    assert (usage.output_tokens, usage.output_tokens_details.thinking_tokens) == (21, 0)
    Message.model_validate(http.post("/v1/messages", json=BODY).json(), strict=True)


def test_stream_has_the_official_order(http):
    with http.stream("POST", "/v1/messages", json=BODY | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = read_typed(response)
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    assert names[:3] == ["message_start", "ping", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(names[3:-3]) == {"content_block_delta"}
    for name, data in events:
        if name != "ping":
            EVENT.validate_python(data, strict=True)
    start = events[0][1]["message"]
    assert start["content"] == [] and start["stop_reason"] is None and start["usage"]["cache_read_input_tokens"] == 3


def test_stream_says_the_same(client):
    with client.messages.stream(**BODY) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    whole = client.messages.create(**BODY)
    assert text == SCRIPT and message.content[0].text == SCRIPT
    assert message.stop_reason == whole.stop_reason and message.usage == whole.usage


@pytest.mark.parametrize(
    ("fields", "text", "stop_reason", "sequence"),
    [
        ({"max_tokens": 5}, "0:the", "max_tokens", None),
        ({"messages": [{"role": "user", "content": "x" * 480}]}, "0:the quic", "model_context_window_exceeded", None),
        ({"stop_sequences": [" brown"]}, "0:the quick", "stop_sequence", " brown"),
    ],
)
def test_why_it_ended(client, fields, text, stop_reason, sequence):
    message = client.messages.create(**BODY | fields)
    assert message.content[0].text == text
    assert (message.stop_reason, message.stop_sequence) == (stop_reason, sequence)
    with client.messages.stream(**BODY | fields) as stream:
        streamed = stream.get_final_message()
    assert (streamed.stop_reason, streamed.stop_sequence) == (stop_reason, sequence)


def test_prompt_of_blocks(client, server):
    """Blocks are joined by newlines, the system comes first, and an answer goes back as it was."""
    answer = client.messages.create(**BODY)
    history = [
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [block.model_dump() for block in answer.content]},
        {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
    ]
    system = [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}]
    expected = f"<|system|>be\nkind\n<|user|>a\n<|assistant|>{SCRIPT}\n<|user|>b\nc\n<|assistant|>"
    wish = {"model": "scripted", "messages": history, "system": system}
    message = client.messages.create(max_tokens=5, **wish)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == len(expected)
    assert client.messages.count_tokens(**wish).input_tokens == len(expected)


def test_an_answer_that_has_begun_goes_on(client):
    """A last message of the assistant has no end, and no new turn begins behind it."""
    begun = [*USER, {"role": "assistant", "content": "Well, "}]
    assert client.messages.count_tokens(model="scripted", messages=begun).input_tokens == len(PROMPT + "Well, ")
    usage = client.messages.create(**BODY | {"messages": begun}).usage
    assert usage.input_tokens + usage.cache_read_input_tokens == len(PROMPT + "Well, ")


def test_count_tokens(http):
    count = http.post("/v1/messages/count_tokens", json={"model": "scripted", "messages": USER}).json()
    assert MessageTokensCount.model_validate(count, strict=True).input_tokens == len(PROMPT)


def test_models(client, http):
    [model] = client.models.list()
    assert (model.id, model.type, model.max_tokens) == ("scripted", "model", 512)
    assert client.models.retrieve("scripted") == model
    headers = {"anthropic-version": "2023-06-01"}
    ModelInfo.model_validate_json(http.get("/v1/models/scripted", headers=headers).content, strict=True)
    assert http.get("/v1/models").json()["data"][0]["object"] == "model"  # OpenAI's, without the header


def test_vllms_fields(start, replying):
    """Claude Code's settings can name them, to switch off thoughts of a model."""
    engine = replying("{{ mood }}:{{ messages[0].content }}", "fine")
    with start(engine).http() as http:
        body = BODY | {"chat_template_kwargs": {"mood": "calm"}}
        answer = http.post("/v1/messages", json=body | {"cache_salt": "mine"})
        assert "X-Lullm-Ignored" not in answer.headers and answer.json()["content"][0]["text"] == "fine"
        count = {"model": "scripted", "messages": USER, "chat_template_kwargs": {"mood": "calm"}}
        assert http.post("/v1/messages/count_tokens", json=count).json()["input_tokens"] == len("calm:hello")
    assert engine.prompts == ["calm:hello"] and engine.requests[0].cache_salt == "mine"


def test_parameters_reach_the_engine(client, server):
    client.messages.create(**BODY, extra_body={"temperature": 0.25, "top_k": 7, "top_p": 0.5})
    params = server.engine.seen[-1][1]
    assert (params.temperature, params.top_k, params.top_p, params.max_tokens) == (0.25, 7, 0.5, 100)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": None}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"stop_sequences": ["s" * 2000]}, "stop"),
        ({"stop_sequences": ["s"] * 65}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "source.type"),
        ({"messages": [{"role": "user", "content": [document(type="base64", data="JVBERg==")]}]}, "send its words"),
        ({"messages": [{"role": "user", "content": [document(type="text")]}]}, "needs data"),
        ({"messages": [{"role": "user", "content": [document(type="content")]}]}, "needs content"),
        ({"messages": [{"role": "user", "content": [CITED]}]}, "citations"),
        (
            {"messages": [*USER, {"role": "assistant", "content": [document(type="text", data="x")]}]},
            "message of the user",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}]},
            "use",
        ),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "1"}]}]}, "user"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt is too long"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search", "input_schema": {}}]}, "web_search"),
        ({"output_config": {"format": {"type": "text", "schema": {}}}}, "output_config.format.type"),
        ({"container": "c"}, "container"),
    ],
)
def test_refusals_have_anthropics_envelope(client, http, fields, word):
    response = http.post("/v1/messages", json=BODY | fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body.keys() == {"type", "error"} and body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error" and word in body["error"]["message"]
    assert http.post("/v1/messages", json=BODY | fields | {"stream": True}).json() == body


def test_other_errors(client, server, start, scripted):
    with pytest.raises(anthropic.NotFoundError) as info:
        client.messages.create(**BODY | {"model": "claude-9"})
    assert info.value.body["error"]["type"] == "not_found_error"
    keyed = start(scripted(), api_keys=("right",))
    for key, error in (("wrong", anthropic.AuthenticationError), ("right", None)):
        with anthropic.Anthropic(base_url=keyed.url, api_key=key, max_retries=0, timeout=20) as other:
            if error is None:
                assert other.messages.create(**BODY).content[0].text == SCRIPT
                continue
            with pytest.raises(error) as info:
                other.messages.create(**BODY)
            assert info.value.body["error"]["type"] == "authentication_error"


def test_a_failure_behind_the_first_event_is_one_error_event(start, scripted):
    running = start(scripted())
    crash = BODY | {"messages": [{"role": "user", "content": "crash"}], "stream": True}
    with running.http() as http, http.stream("POST", "/v1/messages", json=crash) as response:
        *_, (name, last) = read_typed(response)
    assert name == "error" and last["type"] == "error" and last["error"]["type"] == "api_error"
