"""The engine's thread while nothing runs: it takes memory ahead between commands. One turn at a time, in the test."""

import threading
from types import SimpleNamespace

import pytest

from lullm.engine.thread import engine_thread
from lullm.engine.thread.engine_thread import TOUCH_PAUSE_S, EngineThread


class House:
    """A thread's parts, as recorders. `lacking`: how often `touch_ahead` says that there is more."""

    def __init__(self, monkeypatch):
        self.events = []
        self.lacking = 2
        self.is_asleep = False
        self.num_requests = 0
        self.commands = []
        engine = SimpleNamespace(
            is_sleeping=lambda: self.is_asleep,
            has_unfinished_requests=lambda: bool(self.num_requests),
            touch_ahead=self.touch_ahead,
            take_pending=list,
            step=self.step,
        )
        mailbox = SimpleNamespace(wait=self.wait, run_all=lambda: None, is_empty=True)
        watch = SimpleNamespace(wait_s=lambda: None, run_waiting_sleeps=lambda: None, run_due=lambda *_, **__: None)
        admission = SimpleNamespace(deliver=lambda outputs: None, admit_parked=lambda: None, has_parked=False)
        monkeypatch.setattr(threading.Thread, "start", lambda self: None)
        trim = SimpleNamespace(wait_s=lambda: 5.0, busy=lambda: None, idle=lambda: None)
        monkeypatch.setattr(engine_thread, "IdleTrim", lambda clock: trim)
        self.thread = EngineThread(engine, mailbox, watch, admission)

    def touch_ahead(self):
        self.events.append("touch")
        self.lacking -= 1
        return self.lacking > 0

    def step(self):
        self.events.append("step")
        self.num_requests -= 1
        return []

    def wait(self, timeout_s):
        self.events.append(timeout_s)
        if self.commands:
            self.commands.pop()()
            return True
        return False

    def turns(self, num):
        """What happens in so many turns."""
        self.events.clear()
        for _ in range(num):
            self.thread._turn()
        return self.events


@pytest.fixture
def house(monkeypatch):
    return House(monkeypatch)


def test_it_touches_in_pieces_until_enough_is_there(house):
    assert house.turns(3) == [TOUCH_PAUSE_S, "touch", TOUCH_PAUSE_S, "touch", 5.0, "touch"]


def test_a_request_comes_first_and_asks_for_more_memory_afterwards(house):
    house.turns(2)
    house.commands.append(lambda: setattr(house, "num_requests", 2))
    house.lacking = 1
    assert house.turns(4) == [5.0, "step", "step", TOUCH_PAUSE_S, "touch", 5.0, "touch"]


def test_a_sleeping_engine_takes_none_until_it_has_woken(house):
    house.is_asleep = True
    assert house.turns(2) == [5.0, 5.0]
    house.commands.append(lambda: setattr(house, "is_asleep", False))
    assert house.turns(2) == [5.0, TOUCH_PAUSE_S, "touch"]
