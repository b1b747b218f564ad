"""Work that takes long: early headers and comments, bounds on the queue and on time, and the end of a dead engine."""

import asyncio
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from lullm.errors import ConfigError, EngineDeadError
from lullm.server import http_server, sse
from lullm.server.gate.queue_bound import QueueBound
from lullm.server.listen.listener import Listener
from lullm.server.openai import event_stream
from lullm.server.options import ServerOptions
from lullm.types.monitor.stats import EngineStats

BODY = {"prompt": "x", "max_tokens": 4, "stream": True}
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": True}


@pytest.fixture
def slow(scripted, monkeypatch):
    """An engine whose first token takes until `prefilled` is set."""
    engine = scripted()
    engine.prefilled = threading.Event()
    stream = engine.stream

    async def slow_stream(*args):
        import asyncio

        while not engine.prefilled.is_set():
            await asyncio.sleep(0.002)
        async for output in stream(*args):
            yield output

    monkeypatch.setattr(engine, "stream", slow_stream)
    return engine


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", BODY), ("/v1/chat/completions", CHAT)])
def test_headers_and_comments_leave_before_the_first_token(start, slow, monkeypatch, path, body):
    monkeypatch.setattr(event_stream, "START_S", 0.02)
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.02)
    with start(slow).http() as http, http.stream("POST", path, json=body) as response:
        assert response.status_code == 200, "while the engine has not said anything"
        lines = response.iter_lines()
        seen = [next(lines) for _ in range(6)]
        assert set(seen) == {": keep-alive", ""}
        slow.prefilled.set()
        rest = list(lines)
    chunks = [json.loads(line[6:]) for line in rest if line.startswith("data: {")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length" and rest[-2:] == ["data: [DONE]", ""]


def test_the_official_client_reads_over_comments(start, slow, monkeypatch):
    monkeypatch.setattr(event_stream, "START_S", 0.0)
    monkeypatch.setattr(event_stream, "SILENCE_S", 0.005)
    threading.Timer(0.05, slow.prefilled.set).start()
    with start(slow).openai() as client:
        stream = client.completions.create(model="scripted", prompt="x", max_tokens=4, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == "0:th"


def test_a_refusal_has_its_status_however_early_headers_leave(start, scripted, monkeypatch):
    monkeypatch.setattr(event_stream, "START_S", 0.0)
    with start(scripted(max_num_seqs=4)).http() as http:
        for fields in ({"n": 0}, {"prompt": ""}, {"n": 5}, {"n": 1, "best_of": 5}, {"prompt": "x" * 600}):
            response = http.post("/v1/completions", json=BODY | fields)
            assert response.status_code == 400 and response.json()["error"]["param"], response.text


def test_a_stream_that_fails_before_its_headers_has_a_status(start, scripted):
    engine = scripted(enable_sleep_mode=True)
    engine.is_sleeping = True
    with start(engine).http() as http:
        assert http.post("/v1/completions", json=BODY).status_code == 503


def running(engine, num_requests, num_tokens):
    engine.stats = lambda: EngineStats(num_running=num_requests, num_running_prompt_tokens=num_tokens)


def test_a_queue_without_bounds_costs_no_look_at_the_engine():
    """Which counts the tokens of all running prompts."""
    QueueBound(None, None, None).check()


def test_the_queue_is_bounded(start, scripted):
    engine = scripted()
    running(engine, 1, 4)
    server = start(engine, max_queued_requests=2)
    with server.http() as http, ThreadPoolExecutor(3) as pool:
        held = [pool.submit(http.post, "/v1/completions", json={"prompt": "hold"}) for _ in range(3)]
        engine.wait_held(3)
        for body in (BODY, {"prompt": "x"}):
            refused = http.post("/v1/completions", json=body)
            assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
            assert int(refused.headers["retry-after"]) > 0
        with pytest.raises(openai.RateLimitError), server.openai() as client:
            client.completions.create(model="scripted", prompt="x")
        running(engine, 2, 8)
        assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        engine.released.set()
        assert [answer.result().status_code for answer in held] == [200] * 3
        running(engine, 0, 0)
        assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200, "all places are free again"


def test_the_tokens_of_the_queue_are_bounded(start, scripted):
    engine = scripted()
    running(engine, 0, 0)
    with start(engine, max_queued_tokens=4).http() as http, ThreadPoolExecutor(1) as pool:
        held = pool.submit(http.post, "/v1/completions", json={"prompt": "hold"})
        engine.wait_held()
        refused = http.post("/v1/completions", json={"prompt": "x"})
        assert refused.status_code == 429 and "4 tokens wait" in refused.json()["error"]["message"]
        running(engine, 1, 4)
        assert http.post("/v1/completions", json={"prompt": "x"}).status_code == 200
        engine.released.set()
        assert held.result().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_has_a_time_limit(start, scripted, stream):
    engine = scripted()
    with start(engine, request_timeout_s=0.1).http() as http:
        answer = http.post("/v1/completions", json={"prompt": "hold", "stream": stream})
        assert http.post("/v1/completions", json={"prompt": "x", "stream": stream}).status_code == 200
    if stream:
        last = json.loads(answer.text.strip().rpartition("data: ")[2])
        assert answer.status_code == 200 and last["error"]["code"] == "request_timeout" and "[DONE]" not in answer.text
    else:
        assert answer.status_code == 504 and answer.json()["error"]["code"] == "request_timeout"
    assert len(engine.aborted) == 1


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_time_out_of_the_work_itself_is_no_time_out_of_the_request(timeout_s):
    async def work():
        raise TimeoutError("of the work")

    async def main():
        with pytest.raises(TimeoutError, match="of the work"):
            await sse.until_disconnect(asyncio.Event().wait, work(), timeout_s)

    asyncio.run(main())


def test_options_out_of_range():
    for options in ({"max_queued_requests": 0}, {"max_queued_tokens": -1}, {"request_timeout_s": 0}):
        with pytest.raises(ConfigError):
            ServerOptions(**options)


def test_a_dead_engine_ends_the_server(scripted, monkeypatch):
    """500 for who waits, red health for who watches, and an error for the process to end with."""
    import asyncio

    import httpx

    monkeypatch.setattr(http_server, "DEATH_CHECK_S", 0.01)
    monkeypatch.setattr(http_server, "DEATH_S", 0.5)
    options = ServerOptions(port=0)
    seen = {}

    def use(url):
        with httpx.Client(base_url=url, timeout=10) as http:
            seen["before"] = http.get("/health").status_code
            seen["request"] = http.post("/v1/completions", json={"prompt": "crash"}).status_code
            seen["after"] = http.get("/health").status_code
            seen["late"] = http.post("/v1/completions", json={"prompt": "x"}).status_code

    with ThreadPoolExecutor(1) as pool, Listener(options) as listener:
        using = []
        server = http_server.HttpServer(scripted(), options, listener)
        started = time.monotonic()
        with pytest.raises(EngineDeadError, match="step 2 failed"):
            asyncio.run(server.serve(lambda url: using.append(pool.submit(use, url))))
        assert time.monotonic() - started < 10
        using[0].result()
    assert seen == {"before": 200, "request": 500, "after": 503, "late": 503}
