"""/v1/completions with the official client, over a real socket."""

import pytest

SCRIPT = "the quick brown fox"


def test_whole(client):
    answer = client.completions.create(model="scripted", prompt="hello", max_tokens=100)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-") and answer.model == "scripted"
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.index) == (f"0:{SCRIPT}", "stop", 0)
    assert choice.logprobs is None
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (5, 21, 26)
    assert usage.prompt_tokens_details.cached_tokens == 3


def test_length_and_default_limit(client):
    choice = client.completions.create(model="scripted", prompt="hello").choices[0]
    assert (choice.text, choice.finish_reason) == (f"0:{SCRIPT}"[:16], "length")


@pytest.mark.parametrize("stream", [False, True])
def test_batch_of_prompts_times_choices(client, stream):
    answer = client.completions.create(model="scripted", prompt=["a", "bb", "ccc"], n=2, max_tokens=4, stream=stream)
    texts: dict[int, str] = {}
    if stream:
        for chunk in answer:
            for choice in chunk.choices:
                texts[choice.index] = texts.get(choice.index, "") + choice.text
    else:
        assert [choice.index for choice in answer.choices] == list(range(6))
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 24)
        texts = {choice.index: choice.text for choice in answer.choices}
    assert texts == {i: f"{i % 2}:th" for i in range(6)}


def test_prompt_of_ids(client, server):
    ids = server.engine.tokenizer.encode("hey")
    answer = client.completions.create(model="scripted", prompt=[ids, ids[:2]], max_tokens=2, echo=True)
    assert [choice.text for choice in answer.choices] == ["hey0:", "he0:"]


def test_stream_says_the_same(client):
    chunks = list(client.completions.create(model="scripted", prompt="hello", max_tokens=100, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == f"0:{SCRIPT}"
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in chunks)


def test_stream_with_usage(http, read_events):
    body = {"prompt": "hello", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, usage, done = read_events(response)
    assert done == "[DONE]"
    assert usage["choices"] == [] and usage["usage"]["total_tokens"] == 8
    assert all("usage" in chunk and chunk["usage"] is None for chunk in chunks)


def test_stop_string(client):
    choice = client.completions.create(model="scripted", prompt="x", max_tokens=50, stop=[" brown"]).choices[0]
    assert choice.text == "0:the quick"


def test_logprobs(client):
    logprobs = client.completions.create(model="scripted", prompt="x", max_tokens=2, logprobs=2).choices[0].logprobs
    assert logprobs.tokens == ["0", ":"] and logprobs.token_logprobs == [-1.5, -1.5]
    assert [len(best) for best in logprobs.top_logprobs] == [2, 2] and logprobs.text_offset == [0, 1]


def test_echo_with_logprobs(client):
    choice = client.completions.create(model="scripted", prompt="ab", max_tokens=2, logprobs=1, echo=True).choices[0]
    assert choice.text == "ab0:"
    assert choice.logprobs.tokens == ["a", "b", "0", ":"]
    assert choice.logprobs.token_logprobs == [None, -1.5, -1.5, -1.5]
    assert choice.logprobs.text_offset == [0, 1, 2, 3]


def test_streamed_echo_with_logprobs_is_the_same(client):
    chunks = client.completions.create(
        model="scripted", prompt="ab", max_tokens=2, logprobs=1, echo=True, stream=True, n=2
    )
    texts, tokens, offsets = {0: "", 1: ""}, {0: [], 1: []}, {0: [], 1: []}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets[choice.index] += choice.logprobs.text_offset
    assert texts == {0: "ab0:", 1: "ab1:"}
    assert tokens == {0: ["a", "b", "0", ":"], 1: ["a", "b", "1", ":"]}
    assert offsets == {0: [0, 1, 2, 3], 1: [0, 1, 2, 3]}


def test_echo_alone(client):
    answer = client.completions.create(model="scripted", prompt="abc", max_tokens=0, logprobs=1, echo=True)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.logprobs.tokens) == ("abc", "length", ["a", "b", "c"])
    assert answer.usage.completion_tokens == 0


def test_prompt_logprobs(http):
    answer = http.post("/v1/completions", json={"prompt": "ab", "prompt_logprobs": 1}).json()
    first, second = answer["choices"][0]["prompt_logprobs"]
    assert first is None and {entry["rank"] for entry in second.values()} == {1, 2}


def test_request_id_is_honoured_and_cleaned(http, server):
    response = http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "job-7"})
    assert response.json()["id"] == "cmpl-job-7" and response.headers["x-request-id"] == "job-7"
    assert server.engine.seen[-1][0].startswith("cmpl-job-7-")
    response = http.post("/v1/completions", json={"prompt": "x"}, headers={"X-Request-Id": "a b;<c>"})
    assert "x-request-id" not in response.headers and "a b" not in response.json()["id"]


def test_long_prompt_goes_through_a_thread_and_is_refused(http):
    response = http.post("/v1/completions", json={"prompt": "x" * 100_000})
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
