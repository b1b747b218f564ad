"""`lullm serve` as a process: the ready line, one request, the end."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import openai
import pytest

from lullm.cli.main import main

FLAGS = ("--dtype", "float32", "--num-gpu-blocks-override", "40", "--served-model-name", "tiny", "--port", "0")


class Served:
    """The process and its address."""

    def __init__(self, *argv: str, **variables: str):
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"} | variables
        command = [sys.executable, "-W", "error", "-m", "lullm.cli.main", "serve", *argv]
        self.process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
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


def test_idle_server_ends_at_once(served):
    code, err = served.end(signal.SIGTERM)
    assert code == 0 and "Traceback" not in err


def test_port_that_is_taken(capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen on 127.0.0.1" in capsys.readouterr().err
