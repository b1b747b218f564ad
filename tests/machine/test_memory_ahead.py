"""MemoryAhead: memory that is touched before it is asked for. Counted in resident pages, never in seconds."""

import ctypes
import threading

import pytest

from lullm.machine import pages
from lullm.machine.memory import resident_bytes_within
from lullm.machine.memory_ahead import MemoryAhead
from lullm.units import MIB


@pytest.fixture
def freed(monkeypatch):
    """[(address, bytes)] of what is given back."""
    found, free = [], pages.free
    monkeypatch.setattr(pages, "free", lambda *range_: (found.append(range_), free(*range_)))
    return found


def finish(ahead):
    ahead._thread.join()


def test_what_is_taken_has_memory_and_the_rest_goes_back(freed):
    ahead = MemoryAhead(8 * MIB, 64 * MIB)
    finish(ahead)
    freed.clear()
    address = ahead.take(6 * MIB + 1)
    assert address % pages.HUGE_PAGE == 0
    assert freed == [(address + 8 * MIB, 56 * MIB)]
    assert resident_bytes_within(address, 8 * MIB) == 8 * MIB
    ahead.close()
    assert len(freed) == 1, "what was taken is the taker's"
    pages.free(address, 8 * MIB)


def test_beyond_what_was_touched_there_are_addresses():
    ahead = MemoryAhead(2 * MIB, 8 * MIB)
    finish(ahead)
    address = ahead.take(8 * MIB)
    assert resident_bytes_within(address, 8 * MIB) == 2 * MIB
    assert ctypes.string_at(address + 7 * MIB, 4) == bytes(4)
    pages.free(address, 8 * MIB)


def test_nobody_takes_it(freed):
    ahead = MemoryAhead(4 * MIB, 4 * MIB)
    address = ahead._address
    assert ahead.take(4 * MIB + 1) is None, "too much"
    freed.clear()
    ahead.close()
    ahead.close()
    assert freed == [(address, 4 * MIB)]
    assert ahead.take(1) is None


def test_it_is_taken_once():
    ahead = MemoryAhead(2 * MIB, 2 * MIB)
    address = ahead.take(MIB)
    assert ahead.take(MIB) is None
    pages.free(address, 2 * MIB)


def test_nothing_is_touched_after_it_was_taken(monkeypatch):
    """The touching writes zeros: into weights, if it went on."""
    begun, go_on, touched = threading.Event(), threading.Event(), []

    def zero(address, num_bytes):
        touched.append(num_bytes)
        begun.set()
        assert go_on.wait(60)

    monkeypatch.setattr(pages, "zero", zero)
    ahead = MemoryAhead(64 * MIB, 64 * MIB)
    assert begun.wait(60)
    taken = []
    taker = threading.Thread(target=lambda: taken.append(ahead.take(64 * MIB)))
    taker.start()
    while ahead._is_wanted.value:
        pass
    assert not taken, "the step that runs comes first"
    go_on.set()
    taker.join(60)
    assert touched == [16 * MIB] and not ahead._thread.is_alive()
    pages.free(taken[0], 64 * MIB)
