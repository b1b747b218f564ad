"""The server over the real engine with a tiny random model: what the wire says is what the engine says."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from lullm import LLM, AsyncLLMEngine, EngineConfig, SamplingParams

PROMPTS = ["hello world", "the quick brown", "a b c"]
MESSAGES = [{"role": "user", "content": "hello"}]
OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 200, "max_num_seqs": 32}


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """Greedy answers of a direct run: one per prompt, one to the message."""
    params = SamplingParams(temperature=0, max_tokens=20, logprobs=2)
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False) + llm.chat(MESSAGES, params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


@pytest.fixture
def running(qwen3_folder, start):
    return start(AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), served_model_name="tiny", **OPTIONS)))


def until_idle(engine) -> None:
    end = time.monotonic() + 10
    while engine.stats().num_running or engine.stats().num_waiting or engine.stats().num_used_blocks:
        assert time.monotonic() < end, engine.stats()
        time.sleep(0.005)


def test_answers_equal_a_direct_run(running, expected):
    with running.openai() as client:
        answer = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=20, temperature=0, logprobs=2)
        for choice, completion in zip(answer.choices, expected, strict=False):
            assert choice.text == completion.text
            assert choice.finish_reason == completion.finish_reason
            chosen = [
                position[token_id].logprob
                for token_id, position in zip(completion.token_ids, completion.logprobs, strict=True)
            ]
            assert choice.logprobs.token_logprobs == pytest.approx(chosen, abs=1e-4)
        assert answer.usage.completion_tokens == sum(len(completion.token_ids) for completion in expected[:3])
        stream = client.completions.create(model="tiny", prompt=PROMPTS, max_tokens=20, temperature=0, stream=True)
        texts = [""] * 3
        for chunk in stream:
            texts[chunk.choices[0].index] += chunk.choices[0].text
        assert texts == [completion.text for completion in expected[:3]]
        chat = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20, temperature=0)
        assert chat.choices[0].message.content == expected[3].text
        stream = client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=20, temperature=0, stream=True, logprobs=True, top_logprobs=1
        )
        chunks = [chunk.choices[0] for chunk in stream]
        assert "".join(choice.delta.content or "" for choice in chunks) == expected[3].text
        entries = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content]
        assert len(entries) == len(expected[3].token_ids)
        assert all(entry.top_logprobs[0].logprob == entry.logprob for entry in entries), "greedy takes the best"
    until_idle(running.engine)


def test_choices_seeds_and_best_of(running):
    with running.openai() as client:
        ask = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "temperature": 1.0, "seed": 7}
        first, second = (client.completions.create(**ask, n=3) for _ in range(2))
        texts = [choice.text for choice in first.choices]
        assert texts == [choice.text for choice in second.choices] and len(set(texts)) > 1
        best = client.completions.create(**ask, n=1, extra_body={"best_of": 3})
        assert best.choices[0].text in texts
        assert client.completions.create(**(ask | {"seed": 8}), n=3).choices[0].text != texts[0]


def test_beam_search(running, qwen3_folder):
    with LLM(str(qwen3_folder), **OPTIONS) as llm:
        [direct] = llm.beam_search(PROMPTS[0], 3, max_tokens=8, n=2, length_penalty=0.5)
    beams = {"beam_width": 3, "length_penalty": 0.5}
    with running.openai() as client:
        answer = client.completions.create(model="tiny", prompt=PROMPTS[0], max_tokens=8, n=2, extra_body=beams)
        assert [choice.text for choice in answer.choices] == [completion.text for completion in direct.outputs]
        for wrong in ({"stream": True}, {"temperature": 0.5}, {"seed": 1}, {"n": 4}):
            with pytest.raises(openai.BadRequestError):
                client.completions.create(
                    **{"model": "tiny", "prompt": "x", "extra_body": beams, **wrong},
                )


def test_echo_scores_the_prompt(running):
    with running.openai() as client:
        ask = {"model": "tiny", "prompt": "hello world", "temperature": 0, "logprobs": 1, "echo": True}
        whole = client.completions.create(**ask, max_tokens=3).choices[0]
        alone = client.completions.create(**ask, max_tokens=0).choices[0]
        chunks = [chunk.choices[0] for chunk in client.completions.create(**ask, max_tokens=3, stream=True)]
    assert alone.text == "hello world" and whole.text.startswith("hello world")
    num = len(alone.logprobs.tokens)
    assert whole.logprobs.tokens[:num] == alone.logprobs.tokens and len(whole.logprobs.tokens) == num + 3
    assert "".join(alone.logprobs.tokens) == "hello world"
    assert alone.logprobs.token_logprobs[0] is None and all(p <= 0 for p in alone.logprobs.token_logprobs[1:])
    assert sum((chunk.logprobs.tokens for chunk in chunks if chunk.logprobs), []) == whole.logprobs.tokens
    assert "".join(chunk.text for chunk in chunks) == whole.text


def test_stop_reason_and_length(running, expected):
    text = expected[0].text
    stop = text[len(text) // 2 :][:3]
    with running.http() as http:
        body = {"prompt": PROMPTS[0], "max_tokens": 20, "temperature": 0, "stop": [stop]}
        choice = http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == text[: text.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_bad_requests_leave_nothing_behind(running):
    with running.http() as http:
        for fields in (
            {"prompt": ""},
            {"prompt": "x" * 3000},
            {"n": 33},
            {"logit_bias": {"99999": 1}},
            {"allowed_token_ids": [99999]},
            {"stop_token_ids": [-1], "stream": True},
            {"bad_words": [""]},
        ):
            response = http.post("/v1/completions", json={"prompt": "x"} | fields)
            assert response.status_code == 400 and response.json()["error"]["param"], response.text
        assert http.post("/v1/completions", json={"prompt": "x", "max_tokens": 2}).status_code == 200
    until_idle(running.engine)


def test_disconnect_frees_the_blocks(running):
    body = json.dumps({"prompt": "hello", "max_tokens": 500, "ignore_eos": True, "stream": True, "n": 4}).encode()
    sock = socket.create_connection(running.address, timeout=10)
    sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert b"200 OK" in sock.recv(100)
    assert running.engine.stats().num_running == 1
    sock.close()
    until_idle(running.engine)
    assert running.engine.stats().finished_total["abort"] > 0


def test_many_streams_at_once(running, expected):
    def stream(number: int) -> str:
        ask = {"model": "tiny", "prompt": PROMPTS[number % 3], "max_tokens": 20, "temperature": 0, "stream": True}
        return "".join(chunk.choices[0].text for chunk in client.completions.create(**ask))

    with running.openai() as client, ThreadPoolExecutor(48) as pool:
        texts = list(pool.map(stream, range(48)))
    assert texts == [expected[number % 3].text for number in range(48)]
    until_idle(running.engine)
    with running.http() as http:
        assert 'lullm_time_to_first_token_seconds_count{model_name="tiny"} 48.0' in http.get("/metrics").text


def test_abort_by_the_end_of_the_server(running):
    body = {"prompt": "hello", "max_tokens": 400, "ignore_eos": True}
    with running.http() as http, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(http.post, "/v1/completions", json=body | {"n": 32})
        while not running.engine.stats().num_running:
            time.sleep(0.002)
        running.stop()
        assert answer.result().status_code == 503 and answer.result().json()["error"]["code"] == "shutting_down"
