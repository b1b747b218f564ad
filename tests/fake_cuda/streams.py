"""Streams and events, and what each of them knows to be done: vector clocks."""

import time
import traceback

from fake_cuda.tensors import Present


def merge(seen, other):
    for stream, count in other.items():
        seen[stream] = max(seen.get(stream, 0), count)


class FakeStream:
    """`seen`: per stream, how much of its work is known to be done before the next work of this one."""

    def __init__(self, *_, **__):
        self.seen = {}
        self.count = 0
        Present.gpu.order.streams.add(self)

    def now(self):
        return {**self.seen, self: self.count}

    def wait_stream(self, other):
        merge(self.seen, other.now())

    def wait_event(self, event):
        merge(self.seen, event.seen)

    def record_event(self, event=None):
        event = event or FakeEvent()
        event.record(self)
        return event

    def query(self):
        return Present.gpu.order.is_done(self.now())

    def synchronize(self):
        Present.gpu.wait(self.now())


class FakeEvent:
    """Not ready until the host has waited for it, or has asked for it `POLLS` times."""

    POLLS = 3

    def __init__(self, enable_timing=False, **_):
        self.enable_timing, self.seen, self.at, self._polls = enable_timing, None, 0.0, 0

    def record(self, stream=None):
        stream = stream or Present.gpu.stream
        self.seen, self.at, self._polls = stream.now(), time.perf_counter(), 0

    def synchronize(self):
        if self.seen is not None:
            Present.gpu.wait(self.seen)

    def query(self):
        self._polls += 1
        if self.seen is not None and self._polls == self.POLLS:
            Present.gpu.order.learn(self.seen)
        return self.seen is None or Present.gpu.order.is_done(self.seen)

    def elapsed_time(self, end):
        if not (self.enable_timing and end.enable_timing and self.seen is not None and end.seen is not None):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (Present.gpu.order.is_done(self.seen) and Present.gpu.order.is_done(end.seen)):
            raise RuntimeError("CUDA error: device not ready")
        return (end.at - self.at) * 1e3 + 1e-3


class Order:
    """Who may use what when.

    Attributes:
        host: the work that the host knows to be done. faults: see `FakeCuda`.
    """

    def __init__(self, faults, copies):
        self.host, self.streams = {}, set()
        self._faults, self._copies = faults, copies
        self._last = {}  # address of a storage -> ((stream, count) of the last write, {stream: count} of reads since)

    def learn(self, seen):
        """The host knows that so much is done."""
        merge(self.host, seen)
        self._copies.land(self.host)

    def learn_all(self):
        self.learn({stream: stream.count for stream in self.streams})

    def is_done(self, seen):
        return all(self.host.get(stream, 0) >= count for stream, count in seen.items())

    def touch(self, stream, read, written):
        """Work of a stream reads and writes these storages."""
        merge(stream.seen, self.host)
        stream.count += 1
        for address in {*read, *written}:
            write, reads = self._last.get(address, (None, {}))
            others = ([write] if write else []) + (list(reads.items()) if address in written else [])
            for other, count in others:
                if other is not stream and stream.seen.get(other, 0) < count:
                    self.note("a stream uses what another has written, and has not waited for it")
            now = stream, stream.count
            self._last[address] = (now, {}) if address in written else (write, {**reads, stream: stream.count})

    def forget(self, address):
        """New memory stands there: an address may have been another's before."""
        self._last.pop(address, None)

    def is_idle(self, address, num_bytes):
        """Whether the host knows that no work uses this memory."""
        return all(
            self.is_done({**reads, **({write[0]: write[1]} if write else {})})
            for storage, (write, reads) in self._last.items()
            if address <= storage < address + num_bytes
        )

    def note(self, what):
        self._faults.append(f"{what}:\n" + "".join(traceback.format_stack(limit=14)[:-2]))
