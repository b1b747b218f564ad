"""What a short body may cost: `lullm serve` in a fresh process whose resident size is read."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

CODE = """
import sys
from lullm.engine.thread import idle_trim
from lullm.cli.main import main
idle_trim.TRIM_S = 0.5
main(["serve", "--port", "0", "--num-gpu-blocks-override", "1024", "--log-level", "error"])
"""
BODY = {"prompt": [f"a{i}" for i in range(16)], "n": 128, "logprobs": 20, "ignore_eos": True}
WARM_UP = BODY | {"logprobs": None, "max_tokens": 8}


@pytest.fixture(scope="module")
def process():
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        process.terminate()


@pytest.fixture(scope="module")
def http(process):
    with httpx.Client(base_url=process.stdout.readline().split()[-1], timeout=100) as client:
        client.post("/v1/completions", json=WARM_UP).raise_for_status()
        yield client


def megabytes(process, name):
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) / 1024


def reset_peak(process):
    Path(f"/proc/{process.pid}/clear_refs").write_text("5")


def test_log_probabilities_cost_little_more_than_their_json(http, process):
    """340,000 log-probabilities, 9 MiB of JSON: as dicts 48 MiB, and all of it stayed; as arrays 18 MiB."""
    reset_peak(process)
    before = megabytes(process, "VmRSS")
    answer = http.post("/v1/completions", json=BODY | {"max_tokens": 8})
    assert len(answer.json()["choices"]) == 16 * 128
    peak = megabytes(process, "VmHWM") - before
    assert peak < 2.5 * len(answer.content) / 2**20 + 10, peak
    limit = time.monotonic() + 20
    while (kept := megabytes(process, "VmRSS") - before) > 12:
        assert time.monotonic() < limit, f"{kept:.0f} MiB were not given back"
        time.sleep(0.1)


def test_a_short_body_that_asks_for_too_much_is_refused(http, process):
    reset_peak(process)
    before = megabytes(process, "VmRSS")
    answer = http.post("/v1/completions", json=BODY | {"max_tokens": 500})
    assert len(answer.request.content) < 250
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "too_many_logprobs"
    assert "16 prompts x 128 completions x 21 at each of up to 50" in answer.json()["error"]["message"]
    assert megabytes(process, "VmHWM") - before < 4
