"""One server over an engine on a thread, and over one in a process of its own: callers see no difference."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import httpx
import pytest
from kit.ready_process import ReadyPopen

from lullm import AsyncLLMEngine
from lullm.config.engine import EngineConfig
from lullm.engine.process.client import ProcessClient

OPTIONS = {
    "dtype": "float32",
    "num_gpu_blocks_override": 200,
    "max_model_len": 256,
    "max_num_seqs": 32,
    "enable_sleep_mode": True,
    "served_model_name": "tiny",
    "threads": 1,
}
ASK = {"model": "tiny", "max_tokens": 20, "temperature": 0}
MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=[AsyncLLMEngine, ProcessClient])
def running(request, qwen3_folder, start):
    return start(request.param(EngineConfig(model=str(qwen3_folder), **OPTIONS)))


def until(condition, timeout_s=10):
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not come true in time"
        time.sleep(0.005)


def metric(http, name):
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))


def test_whatever_runs_the_engine(running):
    with running.openai() as client, running.http() as http:
        whole = client.chat.completions.create(**ASK, messages=MESSAGES).choices[0].message.content
        stream = client.chat.completions.create(**ASK, messages=MESSAGES, stream=True)
        assert whole and "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole

        assert metric(http, "lullm_generation_tokens_total") == metric(http, "vllm:generation_tokens_total") == 40
        assert metric(http, "lullm_request_success_total") or metric(http, "vllm:request_success_total") == 2

        body = ASK | {"prompt": "hello", "max_tokens": 200, "stream": True, "ignore_eos": True, "n": 16}
        with http.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
            with http.stream("GET", "/page/events") as events:
                lines = (line for line in events.iter_lines() if line)
                _, facts = (json.loads(next(lines).removeprefix("data: ")) for _ in range(2))
            assert facts["stats"]["generation_tokens_total"] > 40 and facts["device"]["num_blocks"] == 200
        until(lambda: running.engine.stats().num_running == running.engine.stats().num_used_blocks == 0)
        assert sum(running.engine.stats().finished_total.values()) == 3, "aborted, if it had not ended before"

        assert http.post("/sleep", json={"level": 1}).json()["freed_bytes"] is not None
        assert http.get("/is_sleeping").json()["is_sleeping"] and http.get("/health").json()["is_sleeping"]
        refused = http.post("/v1/completions", json=ASK | {"prompt": "x"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_asleep"
        assert http.post("/wake_up").json()["was_sleeping"] and metric(http, "lullm_engine_sleeps_total") == 1
        again = client.chat.completions.create(**ASK, messages=MESSAGES).choices[0].message.content
        assert again == whole
        many = http.post("/v1/completions", json=ASK | {"prompt": "x", "n": 40})
        assert many.status_code == 400 and "sequences" in many.json()["error"]["message"]


@pytest.fixture
def served(qwen3_folder):
    """`lullm serve --engine-process`: (process, url, pid of the engine)."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items() if value is not True]
    command = [sys.executable, "-m", "lullm.cli.main", "serve", str(qwen3_folder), "--port=0", "--engine-process"]
    with ReadyPopen([*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().split()[-1]
            children = f"/proc/{process.pid}/task/{process.pid}/children"
            with open(children) as file:
                [pid] = map(int, file.read().split())
            yield process, url, pid
        finally:
            process.kill()


def is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_dead_engine_turns_health_red_and_ends_the_server(served):
    process, url, pid = served
    assert httpx.get(f"{url}/health").status_code == 200
    os.kill(pid, signal.SIGKILL)
    until(lambda: httpx.get(f"{url}/health").status_code == 503)
    failed = httpx.post(f"{url}/v1/completions", json=ASK | {"prompt": "x"})
    assert failed.status_code == 503 and "SIGKILL" in (message := failed.json()["error"]["message"])
    assert message.count("dead") == 1
    assert process.wait(20) == 1 and "SIGKILL" in process.stderr.read()


def test_sigterm_drains_and_leaves_nothing(served):
    process, url, pid = served
    host, _, port = url.removeprefix("http://").rpartition(":")
    body = json.dumps(ASK | {"prompt": "hello", "max_tokens": 200, "ignore_eos": True, "stream": True}).encode()
    with socket.create_connection((host, int(port))) as sock:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        answer = sock.recv(1 << 16)
        for number in (process.pid, pid):  # as a supervisor tells all processes of a service
            os.kill(number, signal.SIGTERM)
        while part := sock.recv(1 << 16):
            answer += part
            if b"[DONE]" in answer:
                break
    assert b"[DONE]" in answer and b'"error"' not in answer, "the running request ends"
    assert process.wait(20) == 0
    log = process.stderr.read()
    assert "Traceback" not in log and "dead" not in log and " ready in " in log, "the engine's lines come out here"
    until(lambda: not is_there(pid))
