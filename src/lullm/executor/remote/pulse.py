"""Pulse: signs of life of a process, counted in memory that another one reads.

The memory (`memfd_create(2)`) has no name, and goes away with the last process that has it.
"""

import contextlib
import mmap
import os
import time
from collections.abc import Iterator

BEATS_PER_TIMEOUT = 10
"""Signs of life that a process gives within the time after which it counts as lost."""
START_S = 60.0
"""Until the first sign of life, at least: a busy machine may take long to start an interpreter."""


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
    """A count of beats, in the memory behind a descriptor, which may be closed then."""

    def __init__(self, descriptor: int):
        self._words = memoryview(mmap.mmap(descriptor, mmap.PAGESIZE)).cast("Q")

    @property
    def beats(self) -> int:
        """Signs of life so far."""
        return self._words[0]

    def beat(self) -> None:
        """One more. By one thread only."""
        self._words[0] += 1


class Silence:
    """How long a process has given no sign of life.

    Args:
        timeout_s: longer than that is too long; the first sign has `START_S` at least.
    """

    def __init__(self, timeout_s: float):
        self._timeout_s = timeout_s
        self._beats = 0
        self._silent_s = 0.0
        self._seen_s = time.monotonic()

    @property
    def tick_s(self) -> float:
        """How often it is to be looked at."""
        return self._timeout_s / BEATS_PER_TIMEOUT

    def fault(self, beats: int) -> str | None:
        """What is wrong with a process that has given so many signs; None: nothing.

        A pause of the caller's own counts little: Ctrl-Z may have stopped it, and the other process with it.
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
