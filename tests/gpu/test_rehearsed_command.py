"""`gpu-check` as a command on a fake GPU: processes, rows, limits, lines, logs, summary (kit/device/rehearsal.py)."""

import os
import subprocess
import sys

import pytest
import torch
from kit.device import rehearsal

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here")

SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift 2; done
echo checked by a stand-in
exec "$@"
"""


class Rehearsed:
    """Runs of the command, with one folder of results."""

    def __init__(self, script, driver, folder):
        self._script, self._folder = script, folder
        self._variables = rehearsal.environment(driver, folder / "faults")
        self.out = folder / "out"

    def run(self, *arguments, **variables):
        command = [sys.executable, str(rehearsal.TESTS.parent / "bench" / "gpu_check.py"), *arguments]
        done = subprocess.run(
            [*command, "--out", str(self.out)], env=self._variables | variables, capture_output=True, text=True
        )
        assert not self.faults, self.faults
        return done

    @property
    def faults(self):
        path = self._folder / "faults"
        return path.read_text() if path.exists() else ""

    @property
    def outcomes(self):
        line, report = self._script("gpu_parts.line"), self._script("gpu_parts.report")
        return {o.row: o for o in report.outcomes_of(line.read_lines(self.out / "gpu-check.jsonl"))}


@pytest.fixture
def rehearsed(script, fake_driver, tmp_path):
    return Rehearsed(script, fake_driver.path, tmp_path)


def test_two_rows_as_processes(rehearsed):
    done = rehearsed.run("--only", "swap,facts")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu-check on a fake: facts, swap" in done.stdout and "| swap | how many" in done.stdout
    found = {name: o for name, o in rehearsed.outcomes.items() if o.state != "not run"}
    assert {name: o.state for name, o in found.items()} == {"facts": "passed", "swap": "passed"}
    assert len(found["swap"].passed) == 9 and found["facts"].seconds > 0
    text = (rehearsed.out / "gpu-check.md").read_text()
    assert "gpu a fake, torch" in text and "| swap | how many programs may copy beside a product | passed |" in text
    assert "beside_gb_per_s" in (rehearsed.out / "swap.log").read_text()
    assert sorted(path.suffix for path in rehearsed.out.iterdir()) == [".jsonl", ".log", ".log", ".md"]


def test_a_fault_in_any_process_is_told(fake_driver, tmp_path):
    """Host memory that is written while a copy out of it is under way."""
    code = "import torch; x = torch.zeros(4).pin_memory(); torch.empty(4, device='cuda').copy_(x, non_blocking=True);"
    code += "x[0] = 1.0; torch.cuda.synchronize()"
    environment = rehearsal.environment(fake_driver.path, tmp_path / "faults")
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert "written before a copy out of it was done" in (tmp_path / "faults").read_text()


OF_A_SERVER = "fastapi,starlette,pydantic,uvicorn,httptools,prometheus_client,huggingface_hub,yaml"
"""What an install brings, and a machine with torch and Triton lacks that gpu-check comes to from source."""


@pytest.mark.slow
def test_the_whole_command_and_the_rest(rehearsed, tmp_path, script):
    """Ten rows without the packages of a server, then eight; every goal has a figure."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "compute-sanitizer").write_text(SANITIZER)
    (bin_folder / "compute-sanitizer").chmod(0o755)
    path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
    first = rehearsed.run(PATH=path, REHEARSAL_LACKS=OF_A_SERVER)
    assert first.returncode == 0, first.stdout + first.stderr
    rest = rehearsed.run("--rest", PATH=path)
    assert rest.returncode == 0, rest.stdout + rest.stderr
    row = script("gpu_parts.row")
    states = {name: outcome.state for name, outcome in rehearsed.outcomes.items()}
    assert states == dict.fromkeys(row.ROWS, "passed")
    assert not any(outcome.skipped for outcome in rehearsed.outcomes.values())
    assert "checked by a stand-in" in (rehearsed.out / "racecheck.log").read_text()
    goals = (rehearsed.out / "gpu-check.md").read_text().split("## Rows")[0]
    assert len(goals.splitlines()) > len(script("gpu_parts.report").GOALS) and "not measured" not in goals
