"""Processes that look after each other while their GPUs work, without GPUs or processes."""

import threading

import pytest
import torch

from lullm.errors import WorkerLostError
from lullm.executor.external import watch
from lullm.executor.external.watch import Watch


class Others:
    """A group whose other member stays, leaves or dies as `fate` says. Aborting ends what waits."""

    def __init__(self):
        self.fate, self.has_left, self.own = "stays", threading.Event(), []
        self.aborted = threading.Event()

    def all_gather(self, x):
        self.own.append(bool(x))
        if self.fate == "dies":
            raise WorkerLostError("connection closed")
        return torch.cat((x, torch.tensor([[self.fate == "stays"]])), 1)

    def close(self):
        self.has_left.set()


@pytest.fixture
def others():
    return Others()


@pytest.fixture
def open_watch(others, monkeypatch):
    monkeypatch.setattr(watch, "BEAT_S", 0.001)
    monkeypatch.setattr(watch, "GONE_S", 0.01)
    opened = []

    def open_one(step_timeout_s=60.0):
        opened.append(Watch(others, others.aborted.set, step_timeout_s))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
        assert not each._thread.is_alive()


@pytest.mark.parametrize(
    ("fate", "work", "words"),
    [
        ("dies", "step", "has died, or hangs: connection closed"),
        ("dies", "call", "has died, or hangs: connection closed"),
        ("leaves", "step", "has ended its engine"),
        ("leaves", "call", "has ended its engine"),
    ],
)
def test_what_waits_for_a_lost_one_ends(others, open_watch, fate, work, words):
    own = open_watch()
    with pytest.raises(WorkerLostError, match=words), own.over(work):
        others.fate = fate
        assert others.aborted.wait(30), "as a GPU waits"
    assert others.has_left.is_set(), "so that the others of the others learn of it"
    with pytest.raises(WorkerLostError, match=words), own.over("call"):
        raise RuntimeError("the communicator was aborted")


def test_a_step_has_a_limit_and_a_call_has_none(others, open_watch):
    own = open_watch(step_timeout_s=0.02)
    with own.over("call"):
        assert not others.aborted.wait(0.1)
    with pytest.raises(WorkerLostError, match="not ended within step_timeout=0.02 s"), own.over("step"):
        assert others.aborted.wait(30)


def test_an_end_is_told(others, open_watch):
    own = open_watch()
    own.close()
    assert others.own[-1] is False and others.has_left.is_set() and not others.aborted.is_set()


def test_one_that_leaves_while_nothing_waits_is_no_loss(others, open_watch):
    own = open_watch()
    others.fate = "leaves"
    assert not others.aborted.wait(0.1)
    own.check()
