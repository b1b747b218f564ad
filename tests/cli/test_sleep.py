"""`lullm sleep`, `wake` and `ps` against `lullm serve` in a process of its own, whose memory is measured."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from kit.ready_process import ReadyPopen
from kit.running import running

from lullm.cli.main import main

LARGE_MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 2048,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "eos_token_id": 0,
}
WEIGHT_BYTES = 2 * (2048 * 1024 + 6 * 1024 * (4 * 1024 + 3 * 4096))


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[str, subprocess.Popen]]:
    """(URL, process) of a server with a dummy model of about 200 MB and an admin key."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "config.json").write_text(json.dumps(LARGE_MODEL))
    flags = ["--model", str(folder), "--tokenizer", "demo", "--load-format", "dummy", "--max-model-len", "256"]
    flags += ["--served-model-name", "large", "--port", "0", "--enable-sleep-mode", "--admin-key", "secret"]
    flags += ["--sleep-dir", str(folder)]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-W", "error", "-m", "lullm.cli.main", "serve", *flags]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        match = re.fullmatch(r"lullm is ready on (\S+)\n", process.stdout.readline())
        assert match, process.communicate()
        yield match[1], process
        process.kill()


def resident_bytes(process: subprocess.Popen) -> int:
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def run(capsys, *argv: str) -> str:
    code = main(list(argv))
    out, err = capsys.readouterr()
    assert code == 0, err
    return out


def complete(url: str) -> str:
    body = json.dumps({"prompt": [5] * 100, "max_tokens": 4, "temperature": 0, "ignore_eos": True}).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", body, timeout=60) as response:
        return json.loads(response.read())["choices"][0]["text"]


def test_memory_falls_and_comes_back(served, capsys):
    url, process = served
    admin = ("--url", url, "--admin-key", "secret")
    text = complete(url)
    awake = resident_bytes(process)
    state = run(capsys, "ps", "--url", url).splitlines()
    head = ["MODEL", "STATE", "RUNNING", "WAITING", "SWAPPED", "KV", "CACHE", "IDLE", "NEXT", "SLEEP"]
    assert state[0].split() == head
    assert re.fullmatch(r"large +awake +0 +0 +0 +0 of \d+ blocks \(0%\) +\d+s +-", state[1])
    forecast = run(capsys, "sleep", "--explain", "--level", "2", "--tags", "weights", *admin)
    assert re.fullmatch(r"would free [\d.]+ MiB, back up 0 B; [\d.]+ s to sleep, [\d.]+ s to wake\n", forecast)
    for level in ("1", "2"):
        assert re.match(
            rf"asleep \(level {level}: weights, kv_cache\): .* freed, ", run(capsys, "sleep", "--level", level, *admin)
        )
        assert awake - resident_bytes(process) > 0.95 * WEIGHT_BYTES
        assert run(capsys, "sleep", *admin) == "asleep already: weights, kv_cache\n"
        assert re.search(
            rf"^large +asleep \(level {level}: weights, kv_cache\) ", run(capsys, "ps", "--url", url), re.M
        )
        assert run(capsys, "wake", "--tags", "weights", *admin) == "still asleep: kv_cache\n"
        assert re.fullmatch(r"awake: \d+\.\d\d s\n", run(capsys, "wake", *admin))
        assert run(capsys, "wake", *admin) == "awake already\n"
        assert complete(url) == text
    assert run(capsys, "sleep", "--level", "0", *admin) == "paused\n"
    assert " paused " in run(capsys, "ps", "--url", url)
    run(capsys, "wake", *admin)


def test_a_wrong_key_is_one_line(served, capsys):
    url, _ = served
    for argv in (["sleep"], ["wake", "--admin-key", "wrong"]):
        assert main([*argv, "--url", url]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"lullm: error: the server on {url} answers 401: a valid admin key is needed")


def test_sigterm_while_asleep_ends_with_0(served, capsys):  # the last one: it ends the server
    url, process = served
    run(capsys, "sleep", "--url", url, "--admin-key", "secret")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 0 and "Traceback" not in err, err


COMMANDS = (["sleep"], ["wake"], ["ps"])


@pytest.mark.parametrize("argv", COMMANDS)
def test_nothing_listens(argv, capsys):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    assert main([*argv, "--url", url]) == 2
    assert capsys.readouterr().err == f"lullm: error: nothing listens on {url}; is `lullm serve` running there?\n"


def test_a_host_of_a_name_that_none_can_have(capsys):
    assert main(["ps", "--url", "http://" + "a" * 64]) == 2
    assert capsys.readouterr().err.startswith("lullm: error: no answer from http://aaa")


@pytest.mark.parametrize("argv", COMMANDS)
@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8000", "ftp://x", "http://", "http://x:y", "http://[", "http://h:99999"]
)
def test_not_a_url(argv, url, capsys):
    assert main([*argv, "--url", url]) == 2
    assert "is not a URL like http://127.0.0.1:8000" in capsys.readouterr().err


class Stranger(BaseHTTPRequestHandler):
    """Some other web server: a page for every path, or 500 where the path says so."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(500 if "broken" in self.path else 200)
        self.end_headers()
        if "vllm" in self.path:
            self.wfile.write(b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1.0\n")
            return
        self.wfile.write(b"" if "empty" in self.path else b"<html>not JSON, not metrics { </html>")

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_without_lullms_metrics(stranger, capsys):
    assert main(["ps", "--url", f"{stranger}/vllm"]) == 2
    assert "under vLLM's names only (--metrics-prefix vllm)" in capsys.readouterr().err


@pytest.mark.parametrize("argv", COMMANDS)
@pytest.mark.parametrize("path", ["", "/broken", "/empty"])
def test_another_server_listens(argv, path, stranger, capsys):
    assert main([*argv, "--url", stranger + path]) == 2
    assert capsys.readouterr().err == f"lullm: error: what listens on {stranger}{path} is not a lullm server\n"


def test_a_server_without_sleep_mode(qwen3_folder, capsys):
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}
    flags = ["--model", str(qwen3_folder), "--num-gpu-blocks-override", "40", "--port", "0", "--api-key", "secret"]
    command = [sys.executable, "-m", "lullm.cli.main", "serve", *flags]
    with running(command, ReadyPopen, env=env, stderr=subprocess.DEVNULL) as process:
        assert process.stdout
        url = process.stdout.readline().split()[-1]
        assert main(["sleep", "--url", url, "--admin-key", "secret"]) == 2
        assert "has no /sleep; start it with --enable-sleep-mode" in capsys.readouterr().err
        assert main(["ps", "--url", url]) == 2
        assert "API key is needed" in capsys.readouterr().err
        assert " awake " in run(capsys, "ps", "--url", url, "--api-key", "secret")


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_a_key_that_cannot_stand_in_a_header(key, capsys):
    assert main(["sleep", "--admin-key", key]) == 2
    assert "printable ASCII" in capsys.readouterr().err
