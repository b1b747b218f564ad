"""Whose threads work in a step, and that the program around lullm gets its number back."""

import pytest
import torch

from lullm.ops import threads
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
