"""GPUs that are made up, each in a process that a trainer or torchrun has started: the tokens of one worker."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from kit.folder.checkpoint import write_checkpoint
from kit.ready_process import ReadyPopen
from kit.worker import launched_gpus

from lullm import LLM
from lullm.collective.seat import Seat
from lullm.device import choice
from lullm.device.choice import take_launched_gpu
from lullm.errors import ConfigError, UnsupportedError
from lullm.executor.external import executor
from lullm.executor.workers import Answer

pytest.importorskip("triton")
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
IS_REAL = pytest.mark.skipif(torch.cuda.is_available(), reason="the real thing is here")


def run_by_trainer(folder, out, *arguments, variables=({}, {})):
    """(exit status, standard error) of each process."""
    command = [sys.executable, launched_gpus.__file__, str(folder), str(out), str(out / "store"), *arguments]
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(len(variables))} | more for rank, more in enumerate(variables)]
    processes = [ReadyPopen(command, env=ENVIRONMENT | rank, stderr=subprocess.PIPE, text=True) for rank in ranks]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    return [(process.returncode, error) for process, error in zip(processes, errors, strict=True)]


def check(folder, out):
    with LLM(str(folder), device="cpu", **launched_gpus.OPTIONS) as llm:
        expected = launched_gpus.answers(llm, folder)
    assert expected[2] != expected[3], "the new weights count"
    first, second = ((out / f"{rank}.json").read_text() for rank in range(2))
    assert first == second, "byte for byte"
    found, facts = json.loads(first)
    assert found == expected
    assert [device for _, _, device, _ in facts] == ["cuda:0", "cuda:1"]
    for num_replays, faults, _, _ in facts:
        assert num_replays > 20 and faults == []


@IS_REAL
@pytest.mark.parametrize(
    ("sizes", "hosts"),
    [
        (("2", "1"), ({}, {})),
        pytest.param(("1", "2"), ({}, {}), marks=pytest.mark.slow),
        (("1", "2"), ({"A_HOST": "a"}, {"A_HOST": "b"})),
        pytest.param(("2", "1"), ({"A_HOST": "a"}, {"A_HOST": "b"}), marks=pytest.mark.slow),
    ],
    ids=["shares", "stages", "stages-two-hosts", "shares-two-hosts"],
)
def test_processes_of_a_trainer(tmp_path, sizes, hosts):
    layers = {"num_hidden_layers": int(sizes[1])}  # one in each stage
    folder = write_checkpoint(tmp_path / "model", "qwen3", **SIZES | layers)
    for code, error in run_by_trainer(folder, tmp_path, *sizes, variables=hosts):
        assert code == 0, error
    check(folder, tmp_path)


@IS_REAL
@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("dies", "a process that shares the model has died"),
        pytest.param("hangs", r"not ended within step_timeout=10 s", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_is_lost_within_a_step(tmp_path, fate, words):
    """Its GPU's partners wait for ever, until their processes notice."""
    folder = write_checkpoint(tmp_path / "model", "qwen3", **SIZES)
    (code, error), (last, _) = run_by_trainer(folder, tmp_path, "2", "1", fate)
    assert (code, last) == (0, -9 if fate == "dies" else 0), error
    assert re.search(words, json.loads((tmp_path / "0.json").read_text()))


@pytest.mark.slow
@IS_REAL
def test_torchrun(tmp_path):
    folder = write_checkpoint(tmp_path / "model", "qwen3", **SIZES)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    arguments = [launched_gpus.__file__, str(folder), str(tmp_path), "-"]
    subprocess.run([*command, *arguments], env=ENVIRONMENT, check=True, timeout=600)
    check(folder, tmp_path)


@pytest.mark.parametrize(
    ("count", "current", "variables", "index"),
    [
        (4, 0, {"LOCAL_RANK": "3"}, 3),
        (4, 2, {"LOCAL_RANK": "3"}, 2),  # the script's own choice
        (1, 0, {"LOCAL_RANK": "3"}, 0),  # the launcher shows each process its own
        (4, 0, {}, 0),
    ],
)
def test_which_gpu_a_launched_process_has(monkeypatch, count, current, variables, index):
    is_current = see_gpus(monkeypatch, count, current)
    assert take_launched_gpu(variables) == f"uuid {index}"
    assert is_current == [index]


def test_more_processes_than_gpus(monkeypatch):
    see_gpus(monkeypatch, 2)
    with pytest.raises(ConfigError, match="LOCAL_RANK=2, and this process sees 2 GPUs: start at most 2"):
        take_launched_gpu({"LOCAL_RANK": "2"})
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: "torch sees no GPU")
    with pytest.raises(UnsupportedError, match="torch sees no GPU; use device='cpu'"):
        take_launched_gpu({})


def see_gpus(monkeypatch, count, current=0):
    """So many, and the number of the current one in a list."""
    is_current = [current]
    monkeypatch.setattr(choice, "missing_for_cuda", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: is_current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: is_current.__setitem__(0, index))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"uuid {index}"))
    return is_current


@pytest.mark.parametrize(
    ("others", "error", "reason"),
    [
        ([Answer("b"), Answer("a")], ConfigError, "processes 0 and 2 of a model have the same GPU: .*LOCAL_RANK"),
        ([Answer(error=UnsupportedError("worker 1: none"))], UnsupportedError, "worker 1: none"),
    ],
)
def test_a_gpu_for_each_process_or_none_starts(monkeypatch, others, error, reason):
    monkeypatch.setattr(executor, "take_launched_gpu", lambda: "a")
    monkeypatch.setattr(executor, "exchange", lambda words, own: [own, *others])
    with pytest.raises(error, match=reason):
        executor._on_gpus(Seat(), 1.0)
