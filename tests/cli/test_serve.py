"""`lullm serve` as a process: the ready line, one request, the end."""

import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from kit.ready_process import ReadyPopen

from lullm.cli.main import main
from lullm.cli.serve import ENGINE_DEAD
from lullm.errors import EngineDeadError
from lullm.server import http_server

FLAGS = ("--dtype", "float32", "--num-gpu-blocks-override", "40", "--served-model-name", "tiny", "--port", "0")


class Served:
    """The process and its address."""

    def __init__(self, *argv: str, start: type[subprocess.Popen[str]] = ReadyPopen, **variables: str):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"} | variables
        command = [sys.executable, "-W", "error", "-m", "lullm.cli.main", "serve", *argv]
        self.process = start(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout
        self.ready_line = self.process.stdout.readline()
        match = re.fullmatch(r"lullm is ready on (http://127\.0\.0\.1:\d+)\n", self.ready_line)
        assert match, self.process.communicate()
        self.url = match[1]

    def end(self, number: int) -> tuple[int, str]:
        """Exit code and stderr after a signal."""
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=20)
        return self.process.returncode, err


@pytest.fixture
def served(qwen3_folder) -> Iterator[Served]:
    running = Served("--model", str(qwen3_folder), *FLAGS, LULLM_API_KEY="secret")
    with running.process:
        yield running
        running.process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_and_end(served, number):
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="secret", max_retries=0) as client:
        assert client.models.list().data[0].id == "tiny"
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()
        stream = client.completions.create(model="tiny", prompt="hello", max_tokens=300, stream=True)
        chunks = [next(stream)]
        served.process.send_signal(number)  # a stream that runs is not cut
        chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")
    out, err = served.process.communicate(timeout=20)
    assert served.process.returncode == 0, err
    assert out == "" and "Traceback" not in err


def test_idle_server_ends_at_once(qwen3_folder):
    """Of a fresh interpreter, whose imports warn of nothing."""
    running = Served("--model", str(qwen3_folder), *FLAGS, start=subprocess.Popen)
    with running.process:
        code, err = running.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err


def test_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err


HOSTILE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if 'boom' in messages[0].content %}"
    "{% set ns = namespace(s=['ab']) %}{% for i in range(40) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"
    "{% endif %}"
)


def test_a_hostile_template_holds_neither_health_nor_the_end(qwen3_folder, tmp_path):
    """It nests lists; printing them would take a terabyte. It used to hang `/health` and SIGTERM."""
    folder = tmp_path / "hostile"
    shutil.copytree(qwen3_folder, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": HOSTILE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    running = Served("--model", str(folder), *FLAGS)
    with running.process, httpx.Client(base_url=running.url, timeout=60) as http:

        def chat(content: str) -> httpx.Response:
            body = {"messages": [{"role": "user", "content": content}], "max_tokens": 2}
            return http.post("/v1/chat/completions", json=body)

        assert chat("hello").status_code == 200
        with ThreadPoolExecutor(2) as pool:
            refused = [pool.submit(chat, "boom") for _ in range(2)]
            num_healthy = 0
            while not all(future.done() for future in refused):
                assert http.get("/health").status_code == 200
                num_healthy += 1
            assert num_healthy > 3
            for future in refused:
                answer = future.result()
                assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages"
                assert "the chat template cannot be used with these messages" in answer.text
            assert chat("hello").status_code == 200
            for _ in range(2):
                pool.submit(chat, "boom")
            time.sleep(0.3)  # so that one renders
            code, err = running.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err, err


def test_a_dead_engine_has_an_exit_code_of_its_own(monkeypatch, capsys):
    async def dies(engine, *_):
        await engine.shutdown()
        raise EngineDeadError("step 7 failed")

    monkeypatch.setattr(http_server, "serve_until_signal", dies)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    assert main(["serve", "--model", "demo", "--port", "0"]) == ENGINE_DEAD == 1
    assert "step 7 failed" in capsys.readouterr().err
