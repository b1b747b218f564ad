"""Signs of life: counted in shared memory, and how long there were none."""

import os

import pytest

from lullm.executor.remote import pulse
from lullm.executor.remote.pulse import BEATS_PER_TIMEOUT, START_S, Pulse, Silence, pulse_memory


@pytest.fixture
def clock(monkeypatch):
    """Seconds, which a test moves."""
    seconds = [0.0]
    monkeypatch.setattr(pulse.time, "monotonic", lambda: seconds[0])
    return seconds


def faults(silence, clock, beats, seconds):
    """What is found when it is looked at in time, for so long."""
    found = []
    for _ in range(round(seconds / silence.tick_s)):
        clock[0] += silence.tick_s
        found.append(silence.fault(beats))
    return found


def test_beats_are_seen_through_the_memory():
    with pulse_memory() as descriptor:
        ours, theirs = Pulse(descriptor), Pulse(descriptor)
        inode = os.fstat(descriptor).st_ino
    assert ours.beats == 0
    theirs.beat()
    theirs.beat()
    assert ours.beats == 2
    with pulse_memory() as descriptor:
        assert os.fstat(descriptor).st_ino != inode and Pulse(descriptor).beats == 0


def test_silence_is_a_fault_after_the_timeout(clock):
    silence = Silence(5.0)
    assert silence.tick_s == 5.0 / BEATS_PER_TIMEOUT
    assert not any(faults(silence, clock, 1, 5.0))
    assert not any(faults(silence, clock, 2, 5.0)), "each sign begins anew"
    found = faults(silence, clock, 2, 1.0)
    assert found[-1] == "has given no sign of life for 5 s (worker_timeout): it is stopped, or hangs"


def test_the_first_sign_has_longer(clock):
    silence = Silence(5.0)
    assert not any(faults(silence, clock, 0, START_S))
    assert f"for {START_S:g} s" in faults(silence, clock, 0, 1.0)[-1]


def test_a_pause_of_the_one_that_looks_counts_little(clock):
    silence = Silence(5.0)
    silence.fault(1)
    clock[0] += 3600.0
    assert silence.fault(1) is None
