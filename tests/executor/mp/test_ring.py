"""The ring alone, with both ends in this process: order, sizes, pieces, back-pressure, several readers."""

import random
import threading

import pytest

from lullm.executor.mp.bell import Bell
from lullm.executor.mp.ring import MAX_READERS, RingMemory, RingReader, RingWriter


class Ends:
    """A writer and readers over one small memory, each through a mapping of its own."""

    def __init__(self, num_readers, num_bytes=256):
        self.memory = RingMemory(num_bytes=num_bytes)
        self.bells = [Bell() for _ in range(num_readers)]
        self.writer_bell = Bell()
        self.writer = RingWriter(self.memory, self.bells)
        self.readers = [RingReader(self.memory, number, self.writer_bell) for number in range(num_readers)]

    def close(self):
        for each in (*self.bells, self.writer_bell, self.memory):
            each.close()


@pytest.fixture
def ends(request):
    ends = Ends(*getattr(request, "param", (1,)))
    yield ends
    ends.close()


def never(timeout_s):
    raise AssertionError("there is room")


def test_messages_come_in_order_and_only_once(ends):
    assert ends.readers[0].read() is None
    for text in (b"one", b"", b"three" * 20):
        ends.writer.write([text[:2], text[2:]], never)
    assert [ends.readers[0].read() for _ in range(4)] == [b"one", b"", b"three" * 20, None]


@pytest.mark.parametrize("ends", [(3, 256)], indirect=True)
def test_every_reader_gets_every_message_of_any_length(ends):
    """Far longer than the ring: the writer waits for the slowest reader, and nothing is lost on the way."""
    rng = random.Random(0)
    messages = [rng.randbytes(rng.choice((0, 1, 7, 100, 248, 249, 5000))) for _ in range(60)]
    found = [[] for _ in ends.readers]

    def read_some(timeout_s):
        number = rng.randrange(len(ends.readers))
        message = ends.readers[number].read()
        if message is not None:
            found[number].append(bytes(message))

    for message in messages:
        cut = rng.randint(0, len(message))
        ends.writer.write([message[:cut], memoryview(message)[cut:]], read_some)
    for reader, mine in zip(ends.readers, found, strict=True):
        while (message := reader.read()) is not None:
            mine.append(bytes(message))
    assert all(mine == messages for mine in found)


def test_between_threads_nothing_waits_for_ever(ends):
    """The flag of a full ring and the bells: a lost wake-up would stop this."""
    messages = [bytes([number % 256]) * (number * 37 % 700) for number in range(2000)]
    waits = []

    def wait(timeout_s):
        waits.append(ends.writer_bell.wait(timeout_s))

    def write():
        for message in messages:
            ends.writer.write([message], wait)

    writing = threading.Thread(target=write)
    writing.start()
    found = []
    while len(found) < len(messages):
        message = ends.readers[0].read()
        if message is None:
            assert ends.bells[0].wait(30), "the writer has rung"
        else:
            found.append(bytes(message))
    writing.join()
    assert found == messages and any(waits), "room was made while the writer waited"


def test_a_writer_that_gives_up_passes_the_error_on(ends):
    def give_up(timeout_s):
        raise TimeoutError

    with pytest.raises(TimeoutError):
        ends.writer.write([bytes(1000)], give_up)


@pytest.mark.parametrize("offset", range(0, 120, 7))
def test_a_short_message_anywhere_around_the_end(ends, offset):
    """Its length, or its bytes, may lie on both sides: then it comes in pieces."""
    size = len(ends.memory.data)
    for length in (size - 40 - offset % 13, 60, 0, 3):
        message = bytes(range(length % 251)) + bytes(length - length % 251)
        ends.writer.write([message[:5], message[5:]], None)
        for reader in ends.readers:
            assert reader.has_news
            assert reader.read() == message and not reader.has_news


def test_signs_of_life(ends):
    other = RingMemory(fd=__import__("os").dup(ends.memory.fd))
    other.beat()
    other.beat()
    assert ends.memory.beats == 2
    other.close()


def test_more_readers_than_counters(ends):
    with pytest.raises(ValueError, match="at most"):
        RingWriter(ends.memory, ends.bells * (MAX_READERS + 1))


def test_rings_of_a_bell_add_up_to_one():
    bell = Bell()
    assert not bell.wait(0)
    bell.ring()
    bell.ring()
    assert bell.wait() and not bell.wait(0.0)
    bell.close()
