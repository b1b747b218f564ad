"""Sleep over HTTP with a real tiny model: streams go on with their tokens, the end does not wait for a sleeper."""

import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from kit.engine.parts import weights_filled_by
from kit.model.decisive import decisive_answers
from prometheus_client.parser import text_string_to_metric_families

from lullm import AsyncLLMEngine, EngineConfig
from lullm.errors import WakeUpError

OPTIONS = {"dtype": "float32", "num_gpu_blocks_override": 200}
ASK = {"max_tokens": 60, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    """Greedy texts of an engine that never sleeps, by prompt."""
    return {prompt: answer.text for prompt, answer in decisive_answers(str(qwen3_folder), 3, 60, **OPTIONS).items()}


@pytest.fixture
def running(request, qwen3_folder, start, monkeypatch):
    """A server; options of its engine may be given as the fixture's parameter."""
    options = OPTIONS | getattr(request, "param", {})
    engine = AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), enable_sleep_mode=True, **options))
    step = engine._engine.step

    def slow_step():
        time.sleep(0.008)  # no request is over before the test's next call has come, on a busy machine either
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
        stream = Stream(running, "hello world", max_tokens=200)  # the calls must come before its end
        sleep = pool.submit(httpx.post, f"{running.url}/sleep?mode=wait", timeout=30)
        while http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code != 503:
            pass
        assert http.post("/wake_up").json()["was_sleeping"] is False
        assert sleep.result().status_code == 409 and sleep.result().json()["error"]["code"] == "sleep_cancelled"
        sleep = pool.submit(httpx.post, f"{running.url}/sleep?mode=wait", timeout=30)
        assert stream.text().startswith(expected["hello world"])
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
    with running.http() as http:
        http.post("/sleep")
        with weights_filled_by(running.engine, lambda fill: None):
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


@pytest.mark.parametrize("running", [{"auto_wake": True}], indirect=True)
def test_the_end_of_the_server_does_not_wait_for_those_who_wait_for_it(running):
    with running.http() as http, ThreadPoolExecutor(2) as pool:
        http.post("/pause")
        asks = [{"prompt": "x", "max_tokens": 2, "stream": stream} for stream in (False, True)]
        waiting = [pool.submit(http.post, "/v1/completions", json=ask) for ask in asks]
        until(lambda: running.engine._entry._num_untaken == 2)
        started = time.monotonic()
        running.signal()
        for task in waiting:
            response = task.result()
            assert response.status_code == 503 and response.json()["error"]["code"] == "shutting_down"
        running.join()
        assert time.monotonic() - started < 5


def sample(http, name, **labels):
    """One number of the metrics."""
    for family in text_string_to_metric_families(http.get("/metrics").text):
        for found in family.samples:
            if found.name == f"lullm_engine_{name}" and labels.items() <= found.labels.items():
                return found.value
    return None


def until(condition, limit_s=20.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition never came true"
        time.sleep(0.005)


def test_explain_then_deepen(running, expected):
    with running.http() as http:
        stream = Stream(running, "hello world")
        http.post("/pause", params={"mode": "keep"})
        for level, backup in ((1, "ram"), (1, "disk"), (2, "auto")):
            wish = {"level": level, "backup": backup}
            forecast = http.get("/sleep/explain", params=wish).json()
            report = http.post("/sleep", json=wish).json()
            assert forecast["tags"] == report["tags"] and forecast["backs_up_bytes"] == report["backed_up_bytes"]
            assert bool(report["backed_up_bytes"]) == (level == 1)
            assert report["state"] == ("weights_offloaded" if level == 1 else "discard_all")
        assert http.post("/sleep", params={"level": 1}).json()["tags"] == [], "never less deep"
        restored = http.post("/resume_memory_occupation").json()
        assert restored["restored_bytes"] > 0 and restored["tags"] == ["weights", "kv_cache"]
        assert stream.text() == expected["hello world"]


def test_pause_and_remote_calls(running, expected, qwen3_folder):
    def call(method, **fields):
        return http.post("/collective_rpc", json={"method": method} | fields)

    with running.http() as http:
        stream = Stream(running, "hello world")
        assert http.post("/pause", params={"mode": "keep"}).json()["status"] == "paused"
        assert http.get("/is_paused").json() == {"is_paused": True} and stream.is_alive()
        assert call("resident_bytes").json()["results"][0]["weights"] > 0
        assert call("modified_weights").json() == {"results": [[]]}
        [version] = call("weights_version").json()["results"]
        assert call("reload_weights").json() == {"results": [None]}
        assert call("weights_version").json() == {"results": [version + 1]}
        assert call("reload_weights", args=["another.safetensors"]).status_code == 400
        missing = call("reload_weights", kwargs={"weights_path": "/no/such/folder"})
        assert missing.status_code == 400 and missing.json()["error"]["param"] == "weights_path"
        assert call("reload_weights", kwargs={"weights_path": str(qwen3_folder)}).json() == {"results": [None]}
        assert call("weights_version", timeout=5).status_code == 400, "nobody could cut it off"
        assert http.post("/resume").json()["state"] == "awake"
        assert stream.text() == expected["hello world"], "computed again with weights that are the same"
        http.post("/sleep")
        assert call("reload_weights").status_code == 409 and call("weights_version").status_code == 200
        stream = http.post("/resume")
        assert stream.status_code == 409 and http.get("/is_sleeping").json()["is_sleeping"]


@pytest.mark.parametrize("running", [{"sleep_after": "1h:1,2h:disk"}], indirect=True)
def test_asleep_by_itself_and_woken_by_requests(running, expected):
    with running.http() as http, ThreadPoolExecutor(8) as pool:
        assert 3500 < sample(http, "next_sleep_seconds", level="1", backup="auto") <= 3600
        body = {"prompt": "hello world", "keep_alive": 0} | ASK
        assert http.post("/v1/completions", json=body).json()["choices"][0]["text"] == expected["hello world"]
        until(lambda: sample(http, "sleep_state", state="weights_offloaded") == 1)
        assert sample(http, "sleeps_total", cause="idle") == 1 and sample(http, "idle_seconds") > 0
        prompts = [list(expected)[number % len(expected)] for number in range(8)]
        asks = [{"prompt": prompt, "keep_alive": "2h"} | ASK for prompt in prompts]
        answers = list(pool.map(lambda ask: http.post("/v1/completions", json=ask), asks))
        assert [answer.json()["choices"][0]["text"] for answer in answers] == [expected[prompt] for prompt in prompts]
        assert sample(http, "wakes_total", cause="request") == 1 and sample(http, "wakes_total", cause="call") == 0
        until(lambda: sample(http, "next_sleep_seconds") is not None)
        assert 7100 < sample(http, "next_sleep_seconds", level="1") <= 7200
        body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, "keep_alive": "-1m"}
        assert http.post("/v1/chat/completions", json=body).status_code == 200
        until(lambda: sample(http, "idle_seconds") > 0)
        assert sample(http, "next_sleep_seconds") is None, "never by itself"
        for wrong in ("5 minutes", "", "nan", float("1e400"), [1], True):
            ask = json.dumps(body | {"keep_alive": wrong})
            response = http.post("/v1/chat/completions", content=ask)
            assert response.status_code == 400, wrong


@pytest.mark.parametrize(
    "running", [{"auto_wake": True, "max_num_wake_waiting": 2, "wake_timeout": 0.2}], indirect=True
)
def test_requests_that_waited_in_vain(running, monkeypatch, caplog):
    with running.http() as http, ThreadPoolExecutor(2) as pool:
        http.post("/pause")
        ask = {"prompt": "hello world"} | ASK
        waiting = [pool.submit(http.post, "/v1/completions", json=ask) for _ in range(2)]
        until(lambda: running.engine._entry._num_untaken == 2)
        refused = http.post("/v1/completions", json=ask)
        for response, words in ((refused, "wait already"), *((task.result(), "did not wake up") for task in waiting)):
            assert response.status_code == 503 and int(response.headers["retry-after"]) > 0
            assert words in response.json()["error"]["message"]
        http.post("/resume")
        http.post("/sleep")
        with monkeypatch.context() as patch:
            patch.setattr(running.engine._engine, "wake_up", fail_to_wake)
            response = http.post("/v1/completions", json=ask)
        assert response.status_code == 500 and response.json()["error"]["code"] == "wake_up_failed"
        assert sample(http, "wake_up_failures_total") == 1 and http.get("/is_sleeping").json()["is_sleeping"]
        response = http.post("/v1/completions", json=ask | {"keep_alive": "inf"})
        assert response.status_code == 400 and response.json()["error"]["param"] == "keep_alive"
        assert http.get("/is_sleeping").json()["is_sleeping"], "nobody is woken for a request that is refused"
        assert http.post("/v1/completions", json=ask).status_code == 200


def fail_to_wake(tags):
    raise WakeUpError("still asleep: another checksum")


def test_clients_over_http_while_another_toggles_sleep(running, expected):
    start = time.monotonic()
    counts = {"ended": 0, "refused": 0, "sleeps": 0}

    def has_enough():
        return counts["ended"] > 16 and counts["sleeps"] > 5

    def goes_on():  # for two seconds, and longer where a slow machine has not come far by then
        elapsed_s = time.monotonic() - start
        return elapsed_s < 2 or (elapsed_s < 30 and not has_enough())

    def generate(number):
        while goes_on():
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
        while goes_on():
            time.sleep(source.random() * 0.1)
            assert http.post("/sleep", params={"level": source.choice((1, 2))}).status_code == 200
            counts["sleeps"] += 1
            assert http.post("/wake_up").status_code == 200

    with running.http() as http, ThreadPoolExecutor(17) as pool:
        tasks = [pool.submit(generate, number) for number in range(16)] + [pool.submit(toggle)]
        for task in tasks:
            task.result()
    assert has_enough(), counts
