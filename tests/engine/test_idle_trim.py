"""When an idle engine gives memory back. The clock is a number."""

import gc

import pytest

from lullm.engine.thread import idle_trim
from lullm.engine.thread.idle_trim import COLLECT_S, TRIM_S, IdleTrim


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def events(monkeypatch):
    found = []
    monkeypatch.setattr(idle_trim, "trim_malloc", lambda: found.append("trim"))
    monkeypatch.setattr(gc, "collect", lambda: found.append("collect"))
    return found


def test_it_trims_twice_in_each_idle_period(events):
    clock = Clock()
    trim = IdleTrim(clock)
    for start in (100.0, 500.0):
        trim.busy()
        assert trim.wait_s() is None
        clock.now = start
        trim.idle()
        assert trim.wait_s() == TRIM_S and events == []
        clock.now = start + TRIM_S - 1
        trim.idle()
        assert trim.wait_s() == 1 and events == []
        clock.now = start + TRIM_S
        trim.idle()
        trim.idle()
        assert trim.wait_s() == COLLECT_S - TRIM_S and events == ["trim"]
        clock.now = start + COLLECT_S + 3
        assert trim.wait_s() == 0
        trim.idle()
        trim.idle()
        assert trim.wait_s() is None and events == ["trim", "collect", "trim"]
        events.clear()


def test_a_request_in_between_starts_the_clock_again(events):
    clock = Clock()
    trim = IdleTrim(clock)
    trim.idle()
    clock.now += TRIM_S - 0.5
    trim.busy()
    trim.idle()
    clock.now += TRIM_S - 0.5
    trim.idle()
    assert events == [] and trim.wait_s() == 0.5
