"""Whose threads work in a step, and that the program around lullm gets its number back."""

import os
import subprocess
import sys
import time

import pytest
import torch
from kit.ready_process import ready_run

from lullm.ops import threads
from lullm.ops.cpu import native
from lullm.ops.cpu.library import absence
from lullm.ops.selection import NATIVE_CPU_OPS
from lullm.ops.threads import StepThreads, torch_threads


@pytest.fixture
def restored():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def native_calls(monkeypatch):
    calls = []
    monkeypatch.setattr(threads.native, "set_num_threads", calls.append)
    return calls


def test_beside_native_ops_torch_has_one_thread(monkeypatch, restored, native_calls):
    monkeypatch.setattr(threads, "load_library", lambda: object())
    torch.set_num_threads(3)
    step = StepThreads(4)
    with step.scope():
        assert torch.get_num_threads() == 1
        assert native_calls == [4]
    assert torch.get_num_threads() == 3


def test_without_native_ops_torch_has_all(monkeypatch, restored, native_calls):
    monkeypatch.setattr(threads, "load_library", lambda: None)
    torch.set_num_threads(3)
    with StepThreads(2).scope():
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 3
    assert native_calls == []


def test_the_number_comes_back_after_an_error(restored):
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError), torch_threads(1):
        raise RuntimeError
    assert torch.get_num_threads() == 2


def test_default(monkeypatch):
    monkeypatch.setattr(threads, "default_num_threads", lambda: 7)
    assert StepThreads().num_threads == 7
    assert StepThreads(2).num_threads == 2


@pytest.mark.skipif(absence() is not None, reason="no native ops")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_beside_a_busy_process_workers_yield_and_come_back_to_all_cores():
    cores = os.sched_getaffinity(0)
    native.set_num_threads(2)
    x, weight = torch.randn(64, 1024).bfloat16(), torch.randn(4096, 1024).bfloat16()
    NATIVE_CPU_OPS.pack_weight_(weight)
    expected = NATIVE_CPU_OPS.linear(x, weight, None)
    busy = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in cores]
    try:
        for _ in range(200):
            assert torch.equal(NATIVE_CPU_OPS.linear(x, weight, None), expected)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    for _ in range(100):  # other work on this machine may make a worker keep off again
        time.sleep(0.2)  # more than what a worker remembers, so that the next operation finds it over
        # One row: with sanitizers an item of 64 takes so long that a worker takes it for time in which it did not run.
        NATIVE_CPU_OPS.linear(x[:1], weight, None)
        if masks_of_own_threads() == {frozenset(cores)}:
            return
    pytest.fail("a worker still keeps off a core")


def masks_of_own_threads():
    return {frozenset(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")}


@pytest.mark.parametrize("isa", [None, "none"], ids=["native", "torch"])
def test_an_engine_in_a_fork_of_a_process_that_has_had_one(isa):
    """OpenMP's threads are not copied: the rotary table of the second engine waited for them for ever."""
    if isa is None and absence() is not None:
        pytest.skip("no native ops")
    program = (
        "import os, signal, sys, torch; from lullm import LLM, SamplingParams\n"
        "torch.set_num_threads(4)\n"
        "def text():\n"
        "    with LLM(threads=2) as llm:\n"
        "        params = SamplingParams(temperature=0, max_tokens=4)\n"
        "        return llm.generate('17 + 25 =', params, use_tqdm=False)[0].outputs[0].text\n"
        "assert text() == ' 42'\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    signal.alarm(60)\n"
        "    os._exit(0 if text() == ' 42' else 1)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    env |= {"LULLM_CPU_ISA": isa} if isa else {}
    done = ready_run([sys.executable, "-c", program], env=env)
    assert done.returncode == 0, done.stderr
