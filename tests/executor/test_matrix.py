"""Processes in every layout, by every executor: the tokens of one worker, preempted, forked and asleep in between."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.folder.checkpoint import write_checkpoint
from kit.worker import matrix
from kit.worker.matrix import QUICK, ROWS, options_of, run_workload

from lullm import LLM

ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
OF_RAY = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of Ray's own files and sockets
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def golden(qwen3_folder, tmp_path_factory):
    """Of layouts: the folder of a model, and the tokens of one worker."""
    found = {}

    def golden(layout):
        has_experts = layout.startswith("ep")
        if has_experts not in found:
            folder = qwen3_folder
            if has_experts:
                folder = write_checkpoint(tmp_path_factory.mktemp("experts"), "qwen3_moe", **EXPERTS)
            with LLM(str(folder), **options_of("one", "recompute")) as llm:
                found[has_experts] = folder, run_workload(llm)["tokens"]
        return found[has_experts]

    return golden


@pytest.fixture(scope="module")
def local_ray():
    """With four cores on paper, so that four workers have room."""
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PYTHONPATH", ENVIRONMENT["PYTHONPATH"])  # Ray's workers import this module
        ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def by_engine(row, folder):
    with LLM(str(folder), distributed_executor_backend=row.executor, **options_of(row.layout, row.preemption)) as llm:
        pids = llm.collective_rpc(pid_of)
        assert len({*pids, os.getpid()}) == 1 + row.num_processes
        return run_workload(llm)


def pid_of(worker):
    return os.getpid()


def by_torchrun(row, folder, out):
    """What every process has found is the same."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(row.num_processes)]
    script = [matrix.__file__, str(folder), str(out), row.layout, row.preemption]
    subprocess.run([*command, *script], env=ENVIRONMENT, check=True, timeout=600)
    first, *others = ((Path(out) / f"{rank}.json").read_text() for rank in range(row.num_processes))
    assert {first} == set(others), "byte for byte"
    return json.loads(first)


def mark(row):
    marks = [] if row == QUICK else [pytest.mark.slow]
    return pytest.param(row, id=str(row), marks=marks + (OF_RAY if row.executor == "ray" else []))


@pytest.mark.parametrize("row", [mark(row) for row in ROWS])
def test_the_tokens_of_one_worker(row, golden, request, tmp_path):
    folder, expected = golden(row.layout)
    if row.executor == "torchrun":
        found = by_torchrun(row, folder, tmp_path)
    else:
        if row.executor == "ray":
            request.getfixturevalue("local_ray")
        found = by_engine(row, folder)
    assert found["tokens"] == expected
    assert found["actions"] == [row.preemption] and found["num_hits"] > 0
