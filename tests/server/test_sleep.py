"""Sleep over HTTP with a real tiny model: streams go on with their tokens, the end does not wait for a sleeper."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from decisive import decisive_answers

from lullm import AsyncLLMEngine, EngineConfig

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 200}
ASK = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """Greedy texts of an engine that never sleeps, by prompt."""
    return {prompt: answer.text for prompt, answer in decisive_answers(str(qwen3_folder), 3, 60, **OPTIONS).items()}


@pytest.fixture
def running(qwen3_folder, start, monkeypatch):
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), enable_sleep_mode=True, **OPTIONS))
    step = engine._engine.step

    def slow_step():
        time.sleep(0.003)  # no request is over before the test's next call has come
        return step()

    monkeypatch.setattr(engine._engine, "step", slow_step)
    return start(engine)


class Stream(threading.Thread):
    """A streamed completion that is read in a thread of its own; `started` once its first chunk is there."""

    def __init__(self, server, prompt, **fields):
        super().__init__()
        self.started = threading.Event()
        self.chunks = []
        self._ask = (f"{server.url}/v1/completions", {"prompt": prompt, "stream": True} | ASK | fields)
        self.start()
        assert self.started.wait(20)

    def run(self):
        url, body = self._ask
        with httpx.stream("POST", url, json=body, timeout=30) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    self.chunks.append(json.loads(line[6:]))
                    self.started.set()

    def ended(self):
        """All chunks, once the stream has ended."""
        self.join(30)
        assert not self.is_alive()
        return self.chunks

    def text(self):
        return "".join(chunk["choices"][0]["text"] for chunk in self.ended())


@pytest.mark.parametrize("level", [0, 1, 2])
def test_kept_streams_go_on_with_the_same_tokens(running, expected, level):
    with running.http() as http:
        streams = {prompt: Stream(running, prompt) for prompt in expected}
        report = http.post("/sleep", params={"level": level}).json()
        assert report["is_sleeping"] and report["level"] == level
        assert not level or report["seconds"] > 0
        counts = [len(stream.chunks) for stream in streams.values()]
        refused = http.post("/v1/completions", json={"prompt": "x"} | ASK)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_asleep"
        assert all(stream.is_alive() for stream in streams.values()) and max(counts) < 60
        assert http.post("/wake_up").json()["is_sleeping"] is False
        assert {prompt: stream.text() for prompt, stream in streams.items()} == expected
        again = http.post("/v1/completions", json={"prompt": list(expected)} | ASK).json()
    assert [choice["text"] for choice in again["choices"]] == list(expected.values())


def test_mode_wait_and_its_cancellation(running, expected):
    with running.http() as http, ThreadPoolExecutor(1) as pool:
        stream = Stream(running, "hello world")
        sleep = pool.submit(httpx.post, f"{running.url}/sleep?mode=wait", timeout=30)
        while http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code != 503:
            pass
        assert http.post("/wake_up").json()["was_sleeping"] is False
        assert sleep.result().status_code == 409 and sleep.result().json()["error"]["code"] == "sleep_cancelled"
        sleep = pool.submit(httpx.post, f"{running.url}/sleep?mode=wait", timeout=30)
        assert stream.text() == expected["hello world"]
        assert sleep.result().json()["sleeping_tags"] == ["weights", "kv_cache"]


def test_mode_abort(running):
    with running.http() as http, ThreadPoolExecutor(1) as pool:
        stream = Stream(running, "hello world", max_tokens=200)
        body = {"prompt": "a b c"} | ASK | {"max_tokens": 200}
        whole = pool.submit(httpx.post, f"{running.url}/v1/completions", json=body, timeout=30)
        while running.engine.stats().num_running < 2:
            time.sleep(0.002)
        http.post("/sleep", json={"mode": "abort"})
        assert stream.ended()[-1]["error"]["code"] == "engine_asleep"
        assert whole.result().status_code == 503 and whole.result().headers["retry-after"]
        assert running.engine.stats().num_used_blocks == 0


def test_arguments_that_the_engine_refuses(running):
    with running.http() as http:
        for path, fields, param in (
            ("/sleep", {"level": 3}, "level"),
            ("/sleep", {"level": -1}, "level"),
            ("/sleep", {"tags": ["graphs"]}, "tags"),
            ("/wake_up", {"tags": ["weights", ""]}, "tags"),
        ):
            for arguments in ({"params": fields}, {"json": fields}):
                response = http.post(path, **arguments)
                assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text
        assert http.get("/is_sleeping").json()["is_sleeping"] is False


def test_a_failed_wake_up_is_told_and_can_be_tried_again(running, expected, monkeypatch, caplog):
    runner = running.engine._engine.model_executor.driver_worker.model_runner
    with running.http() as http:
        http.post("/sleep")
        with monkeypatch.context() as patch:
            patch.setattr(runner, "fill_weights", lambda: None)
            response = http.post("/wake_up")
        assert response.status_code == 500 and response.json()["error"]["code"] == "wake_up_failed"
        assert "checksum" in response.json()["error"]["message"]
        assert http.get("/is_sleeping").json()["sleeping_tags"] == ["weights", "kv_cache"]
        assert http.post("/wake_up").json()["is_sleeping"] is False
        answer = http.post("/v1/completions", json={"prompt": "hello world"} | ASK).json()
    assert answer["choices"][0]["text"] == expected["hello world"]


@pytest.mark.parametrize("level", [0, 1])
def test_the_end_of_the_server_does_not_wait_for_a_sleeper(running, level):
    with running.http() as http:
        stream = Stream(running, "hello world")
        http.post("/sleep", params={"level": level})
        started = time.monotonic()
        running.signal()
        running.join()
        assert time.monotonic() - started < 5, "the drain's patience is 30 s"
    assert stream.ended()[-1]["error"]["code"] == "shutting_down"


def test_clients_over_http_while_another_toggles_sleep(running, expected):
    end = time.monotonic() + 2
    counts = {"ended": 0, "refused": 0, "sleeps": 0}

    def generate(number):
        while time.monotonic() < end:
            prompt = list(expected)[number % len(expected)]
            body = {"prompt": prompt, "stream": number % 2 == 1} | ASK | {"max_tokens": 20}
            response = http.post("/v1/completions", json=body)
            if response.status_code == 503:
                assert response.json()["error"]["code"] == "engine_asleep"
                counts["refused"] += 1
                time.sleep(0.01)
                continue
            assert response.status_code == 200, response.text
            if body["stream"]:
                lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
                assert lines.pop() == "[DONE]"
                text = "".join(json.loads(line)["choices"][0]["text"] for line in lines)
            else:
                text = response.json()["choices"][0]["text"]
            assert text and expected[prompt].startswith(text)
            counts["ended"] += 1

    def toggle():
        source = random.Random(0)
        while time.monotonic() < end:
            time.sleep(source.random() * 0.1)
            assert http.post("/sleep", params={"level": source.choice((1, 2))}).status_code == 200
            counts["sleeps"] += 1
            assert http.post("/wake_up").status_code == 200

    with running.http() as http, ThreadPoolExecutor(17) as pool:
        tasks = [pool.submit(generate, number) for number in range(16)] + [pool.submit(toggle)]
        for task in tasks:
            task.result()
    assert counts["ended"] > 16 and counts["sleeps"] > 5, counts
