"""Pulse: heartbeats of a process, counted in memory that another process reads.

The memory (`memfd_create(2)`) has no name, and goes away with the last process that has it.
"""

import contextlib
import mmap
import os
import time
from collections.abc import Iterator

BEATS_PER_TIMEOUT = 10
"""Heartbeats within the time after which a process without one is lost."""
START_S = 60.0
"""Least seconds until the first heartbeat: a busy machine may take long to start an interpreter."""


@contextlib.contextmanager
def pulse_memory() -> Iterator[int]:
    """The descriptor of new memory for a pulse, until another process has inherited it."""
    descriptor = os.memfd_create("lullm-pulse")
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        yield descriptor
    finally:
        os.close(descriptor)


class Pulse:
    """A count of heartbeats, in the memory of a descriptor, which may be closed afterwards."""

    def __init__(self, descriptor: int):
        self._words = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")

    @property
    def beats(self) -> int:
        """Heartbeats so far."""
        return self._words[0]

    def beat(self) -> None:
        """Count one more. By one thread only."""
        self._words[0] += 1


class Silence:
    """The time since a process's last heartbeat.

    Args:
        timeout_s: the longest time allowed; before the first heartbeat at least `START_S`.
    """

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._beats = 0
        self._silent_s = 0.0
        self._seen_s = time.monotonic()

    @property
    def tick_s(self) -> float:
        """Seconds between two checks."""
        return self._timeout_s / BEATS_PER_TIMEOUT

    def fault(self, beats: int) -> str | None:
        """The fault of a process with so many heartbeats, or None.

        A pause of the caller's own counts little: Ctrl-Z may have stopped both processes.
        """
        now = time.monotonic()
        passed_s = min(now - self._seen_s, 2 * self.tick_s)
        self._seen_s = now
        self._silent_s = 0.0 if beats != self._beats else self._silent_s + passed_s
        self._beats = beats
        limit_s = self._timeout_s if beats else max(self._timeout_s, START_S)
        if self._silent_s <= limit_s:
            return None
        return f"has given no sign of life for {limit_s:g} s (worker_timeout): it is stopped, or hangs"
