"""/api/chat and /api/generate with the official client, over a real socket; every line is validated strictly."""

import json

import ollama
import pytest
from ollama import ChatResponse, GenerateResponse

SCRIPT = "0:the quick brown fox"
MESSAGES = [{"role": "user", "content": "hello"}]
PROMPT = "<|user|>hello\n<|assistant|>"
CHAT = {"model": "scripted", "messages": MESSAGES}
GENERATE = {"model": "scripted", "prompt": "hello"}


def read_lines(http, path, body, kind):
    """The objects of a stream, each one valid."""
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200 and response.headers["content-type"] == "application/x-ndjson"
        lines = [json.loads(line) for line in response.iter_lines()]
    for line in lines:
        kind.model_validate(line, strict=True)
    return lines


def check_figures(last, num_prompt):
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"]) == (num_prompt, 21)
    spans = [last[name] for name in ("load_duration", "prompt_eval_duration", "eval_duration")]
    assert min(spans) >= 0 and abs(last["total_duration"] - sum(spans)) <= 3


def test_chat(client, http):
    answer = client.chat(**CHAT)
    assert answer.model == "scripted" and answer.created_at.endswith("Z")
    assert (answer.message.role, answer.message.content) == ("assistant", SCRIPT)
    check_figures(answer.model_dump(), len(PROMPT))
    ChatResponse.model_validate(http.post("/api/chat", json=CHAT | {"stream": False}).json(), strict=True)


def test_generate(client, http):
    answer = client.generate(**GENERATE, system="be kind")
    assert answer.response == SCRIPT
    check_figures(answer.model_dump(), len("<|system|>be kind\n" + PROMPT))
    whole = http.post("/api/generate", json=GENERATE | {"stream": False}).json()
    GenerateResponse.model_validate(whole, strict=True)


@pytest.mark.parametrize(("path", "body"), [("/api/chat", CHAT), ("/api/generate", GENERATE)])
def test_what_a_body_leaves_open(http, server, path, body):
    """Ollama's own defaults behind the model's; OpenAI's endpoints keep vLLM's."""
    for given, expected in [({}, (0.5, 40, 0.9, 0)), ({"top_k": 0, "top_p": 1, "min_p": 0.1}, (0.5, 0, 1, 0.1))]:
        http.post(path, json=body | {"stream": False, "options": given}).raise_for_status()
        _, params, _ = server.engine.seen[-1]
        assert (params.temperature, params.top_k, params.top_p, params.min_p) == expected
    http.post("/v1/chat/completions", json=CHAT).raise_for_status()
    assert server.engine.seen[-1][1].top_k == 0


def test_streams_say_the_same_and_are_the_default(http):
    *lines, last = read_lines(http, "/api/chat", CHAT, ChatResponse)
    assert "".join(line["message"]["content"] for line in lines) == SCRIPT and last["message"]["content"] == ""
    assert [line["done"] for line in lines] == [False] * len(lines)
    check_figures(last, len(PROMPT))
    *lines, last = read_lines(http, "/api/generate", GENERATE, GenerateResponse)
    assert "".join(line["response"] for line in lines) == SCRIPT and last["response"] == ""
    check_figures(last, len(PROMPT))


def test_streams_of_the_client(client):
    assert "".join(part.message.content for part in client.chat(**CHAT, stream=True)) == SCRIPT
    assert "".join(part.response for part in client.generate(**GENERATE, stream=True)) == SCRIPT


def test_an_answer_that_has_begun_goes_on(client):
    begun = [*MESSAGES, {"role": "assistant", "content": "Well, "}]
    assert client.chat(model="scripted", messages=begun).prompt_eval_count == len(PROMPT + "Well, ")


def test_a_raw_prompt_has_no_template(client):
    assert client.generate(**GENERATE, raw=True).prompt_eval_count == len("hello")


def test_a_model_without_a_template_continues_the_prompt(start, scripted, connect):
    engine = scripted()
    engine.tokenizer.chat_template = None
    client = connect(start(engine))
    assert client.generate(**GENERATE, system="be").prompt_eval_count == len("be\nhello")
    with pytest.raises(ollama.ResponseError) as info:
        client.generate(**GENERATE, think=True)
    assert info.value.status_code == 400 and "think" in info.value.error


@pytest.mark.parametrize("name", ["scripted", "scripted:latest"])
def test_names(client, name):
    assert client.chat(model=name, messages=MESSAGES).model == name


def test_options_reach_the_engine(client, server):
    options = {"num_predict": 5, "temperature": 0.25, "top_k": 7, "top_p": 0.5, "min_p": 0.1, "seed": 3}
    options |= {"stop": ["fox"], "repeat_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25}
    for call in (client.chat, client.generate):
        wish = CHAT if call == client.chat else GENERATE
        answer = call(**wish, options=options)
        assert answer.done_reason == "length" and answer.eval_count == 5
        params = server.engine.seen[-1][1]
        assert (params.max_tokens, params.temperature, params.top_k, params.top_p) == (5, 0.25, 7, 0.5)
        assert (params.min_p, params.seed, params.stop, params.repetition_penalty) == (0.1, 3, ("fox",), 1.5)
        assert (params.presence_penalty, params.frequency_penalty) == (0.5, 0.25)
    client.generate(**GENERATE, raw=True, options={"num_predict": -1, "seed": -1})
    assert server.engine.seen[-1][1].max_tokens == 512 and server.engine.seen[-1][1].seed is None


def test_options_without_a_meaning_are_named(http):
    body = CHAT | {"stream": False, "options": {"num_ctx": 4096, "num_gpu": 1, "mirostat": 0}}
    answer = http.post("/api/chat", json=body)
    assert answer.status_code == 200 and answer.headers["X-Lullm-Ignored"] == "options.num_ctx, options.num_gpu"


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(http, stream):
    for path, body, kind in (
        ("/api/chat", CHAT, ChatResponse),
        ("/api/generate", GENERATE, GenerateResponse),
        ("/api/generate", GENERATE | {"raw": True}, GenerateResponse),
    ):
        wish = body | {"logprobs": True, "top_logprobs": 2, "stream": stream, "options": {"num_predict": 2}}
        if stream:
            lines = read_lines(http, path, wish, kind)
        else:
            lines = [http.post(path, json=wish).json()]
            kind.model_validate(lines[0], strict=True)
        rows = [row for line in lines for row in line.get("logprobs", ())]
        assert [row["token"] for row in rows] == ["0", ":"] and [len(row["top_logprobs"]) for row in rows] == [2, 2]


def test_nothing_to_say_loads_the_model(client, server):
    num_seen = len(server.engine.seen)
    for answer in (client.generate(model="scripted"), client.generate(model="scripted", prompt="")):
        assert (answer.done, answer.done_reason, answer.response) == (True, "load", "")
        assert answer.eval_count is None
    chat = client.chat(model="scripted")
    assert (chat.done_reason, chat.message.content) == ("load", "")
    [streamed] = client.generate(model="scripted", stream=True)
    assert streamed.done_reason == "load"
    assert len(server.engine.seen) == num_seen + 4  # a request that sleeping engines wake up for


def test_keep_alive(client, server, start, scripted, connect):
    """A server that no request wakes keeps the model as long as anybody wants; one that sleeps is told."""
    for value in ("5m", -1, 3600):
        client.chat(**CHAT, keep_alive=value)
        assert server.engine.keep_alives[-1] is None
    client.chat(**CHAT, keep_alive=0)
    assert server.engine.keep_alives[-1] == 0  # which the engine refuses
    for options in ({"sleep_after": "60s:1"}, {"auto_wake": True}):
        engine = scripted(enable_sleep_mode=True, **options)
        sleeper = connect(start(engine))
        sleeper.generate(model="scripted", keep_alive="5m")
        assert sleeper.generate(model="scripted", keep_alive=0).done_reason == "unload"
        assert engine.keep_alives == [300, 0]


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"options": {"num_predict": 0}}, "options.num_predict"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"top_k": -2}}, "options.top_k"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"stop": ["s"] * 65}}, "stop"),
        ({"top_logprobs": 99, "logprobs": True}, "logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"format": "xml"}, "format"),
        ({"think": "hard"}, "think"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "text only"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "prompt is too long"),
    ],
)
def test_refusals_have_ollamas_envelope(http, fields, word):
    response = http.post("/api/chat", json=CHAT | fields)
    assert response.status_code == 400, response.text
    assert response.json().keys() == {"error"} and word in response.json()["error"]


@pytest.mark.parametrize("fields", [{"template": "{{ .Prompt }}"}, {"context": [1, 2]}])
def test_generate_refuses_what_it_cannot_do(http, fields):
    [name] = fields
    response = http.post("/api/generate", json=GENERATE | fields)
    assert response.status_code == 400 and name in response.json()["error"]


def test_other_errors(client, start, scripted, connect):
    with pytest.raises(ollama.ResponseError) as info:
        client.chat(model="llama9", messages=MESSAGES)
    assert info.value.status_code == 404 and "llama9" in info.value.error
    running = start(scripted(), api_keys=("right",))
    with pytest.raises(ollama.ResponseError) as info:
        connect(running).chat(**CHAT)
    assert info.value.status_code == 401
    connect(running, headers={"Authorization": "Bearer right"}).chat(**CHAT)


def test_a_failure_behind_the_first_line_is_one_line(start, scripted):
    crash = CHAT | {"messages": [{"role": "user", "content": "crash"}]}
    with start(scripted()).http() as http, http.stream("POST", "/api/chat", json=crash) as response:
        *_, last = [json.loads(line) for line in response.iter_lines()]
    assert last.keys() == {"error"}
