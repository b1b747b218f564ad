"""Crowds: a thousand requests that leave, servers beside each other, and requests made up from the document."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import hypothesis
import pytest
import schemathesis

from lullm import AsyncLLMEngine, EngineConfig

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 200, "max_num_seqs": 32}
BODY = json.dumps({"prompt": "hello", "max_tokens": 300, "ignore_eos": True, "stream": True}).encode()
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(BODY)


def test_a_thousand_requests_that_leave(qwen3_folder, start):
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **OPTIONS))
    server = start(engine)

    def leave(number):
        with socket.create_connection(server.address, timeout=100) as sock:
            sock.sendall(HEAD + BODY[: len(BODY) // 2] if number % 5 == 0 else HEAD + BODY)
            if number % 5 == 1:
                sock.recv(64)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(leave, range(1000)))
    with server.http() as http:
        answer = http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3})
        assert answer.json()["usage"]["completion_tokens"] == 3, "the engine is free for others"
        end = time.monotonic() + 20
        while http.get("/load").json()["server_load"]:
            assert time.monotonic() < end, "requests of clients that have gone go on"
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_used_blocks) == (0, 0, 0)
    assert stats.finished_total["abort"] > 0


def test_two_servers_on_one_host(start, scripted):
    first, second = start(scripted("one")), start(scripted("two"))
    with first.openai() as one, second.openai() as two:
        texts = [each.completions.create(model="scripted", prompt="x").choices[0].text for each in (one, two)]
    assert texts == ["0:one", "0:two"]
    first.stop()
    with second.http() as http:
        assert http.get("/health").status_code == 200


@pytest.mark.slow
def test_requests_made_up_from_the_document(start, scripted):
    """No answer is a 5xx, whatever a body says that fits the document, or nearly fits it."""
    server = start(scripted(enable_sleep_mode=True))
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    quick = hypothesis.settings(
        max_examples=3,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    num_calls = 0
    for result in schema.get_all_operations():
        operation = result.ok()

        @quick
        @hypothesis.given(case=operation.as_strategy())
        def check(case):
            nonlocal num_calls
            num_calls += 1
            answer = case.call()
            assert answer.status_code < 500 or answer.status_code in (501, 503), (case.method, case.path, answer.text)

        check()
    assert num_calls > 100
