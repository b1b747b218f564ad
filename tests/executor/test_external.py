"""External launchers: processes that run the same script are the workers of an engine, and all of them say the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit.ready_process import ReadyPopen
from kit.worker import launched

from lullm import LLM
from lullm.config.engine import EngineConfig
from lullm.engine.async_llm_engine import AsyncLLMEngine
from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.external.launch import num_local_ranks

SCRIPT = Path(launched.__file__)
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def expected(qwen3_folder):
    with LLM(str(qwen3_folder), **launched.OPTIONS) as llm:
        return launched.answers(llm, qwen3_folder)


def run_by_trainer(num_processes, folder, out, *sizes):
    """Processes that a trainer has put into one group; what each has written, by rank."""
    command = [sys.executable, str(SCRIPT), str(folder), str(out), str(out / "store"), *sizes]
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(num_processes)} for rank in range(num_processes)]
    processes = [ReadyPopen(command, env=ENVIRONMENT | rank, stderr=subprocess.PIPE, text=True) for rank in ranks]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * num_processes, "\n".join(errors)
    return [(out / f"{rank}.json").read_text() for rank in range(num_processes)]


def check(first, *others, expected):
    found, (kind, num_workers), errors = json.loads(first)
    assert {first} == set(others), "byte for byte"
    assert found == expected
    assert num_workers == 1 + len(others) and kind in ("MemoryGroup", "TorchGroup")
    assert "push different tensors at a time: model.layers.0" in errors[0] and "model.layers.1" in errors[0]
    assert "model.norm.weight has shape [7]" in errors[1]


def test_processes_of_a_trainer_say_what_one_says(qwen3_folder, tmp_path, expected):
    check(*run_by_trainer(2, qwen3_folder, tmp_path), expected=expected)


def test_two_stages_say_what_one_worker_says(qwen3_folder, tmp_path, expected):
    check(*run_by_trainer(2, qwen3_folder, tmp_path, "1", "2"), expected=expected)


@pytest.mark.slow
def test_stages_of_workers_by_torchrun(qwen3_folder, tmp_path, expected):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
    arguments = [str(SCRIPT), str(qwen3_folder), str(tmp_path), "-", "2", "2"]
    subprocess.run([*command, *arguments], env=ENVIRONMENT, check=True, timeout=600)
    check(*((tmp_path / f"{rank}.json").read_text() for rank in range(4)), expected=expected)


@pytest.mark.slow
def test_torchrun(qwen3_folder, tmp_path, expected):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    arguments = [str(SCRIPT), str(qwen3_folder), str(tmp_path), "-"]
    subprocess.run([*command, *arguments], env=ENVIRONMENT, check=True, timeout=600)
    check(*((tmp_path / f"{rank}.json").read_text() for rank in range(2)), expected=expected)


@pytest.mark.slow
def test_more_processes_than_workers_are_several_engines(qwen3_folder, tmp_path, expected):
    for text in run_by_trainer(4, qwen3_folder, tmp_path):
        assert json.loads(text)[0] == expected[:1]


def launch_options(**options):
    return options | {"distributed_executor_backend": "external_launcher"}


def test_without_a_launcher(qwen3_folder, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2"):
        LLM(str(qwen3_folder), **launch_options(tensor_parallel_size=2))


def test_one_worker_needs_no_launcher(qwen3_folder, expected):
    with LLM(str(qwen3_folder), **launch_options(**launched.OPTIONS)) as llm:
        assert launched.answers(llm, qwen3_folder) == expected
        assert llm.collective_rpc(lambda worker: os.getpid()) == [os.getpid()]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"seed": None}, "requests without a seed"),
        ({"delay_factor": 0.5, "enable_chunked_prefill": False, "max_num_batched_tokens": 4096}, "a clock of its own"),
        ({"sleep_after": "60s:1", "enable_sleep_mode": True}, "a clock of its own"),
        ({"auto_wake": True, "enable_sleep_mode": True}, "all have to wake up"),
        ({"worker_timeout": 3.0}, "worker_timeout needs"),
    ],
)
def test_what_processes_could_not_agree_on_is_refused(options, reason):
    with pytest.raises(ConfigError, match=reason):
        EngineConfig(model="demo", **launch_options(**options))


def test_requests_that_come_to_one_process_only_are_refused(qwen3_folder):
    with pytest.raises(UnsupportedError, match="AsyncLLMEngine"):
        AsyncLLMEngine(EngineConfig(model=str(qwen3_folder), **launch_options()))


@pytest.mark.parametrize(("text", "number"), [("4", 4), ("", 1), ("x", 1), ("0", 1)])
def test_processes_of_this_host(text, number):
    assert num_local_ranks({"LOCAL_WORLD_SIZE": text}) == number
