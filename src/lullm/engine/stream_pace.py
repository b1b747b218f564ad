"""StreamPace: how often a stream has an output. Tokens drawn in between come with the next one.

An output costs 35 us on its way to a socket, and competes for Python's lock with the step loop. A small model draws 400
tokens a second for each of 32 streams: single ones are too quick to be read, and to send them took a third of the
throughput.
A model that takes longer for a step than the pause has an output per step, and every stream its first token at once.

All streams have their outputs at the same moments, the ticks of one clock: one pass of the event loop sends them. With
a clock for each, some of them had one in every step.
"""

import math
import time
from collections.abc import Callable

STREAMS = 64
"""More of them have longer pauses, in proportion."""


class StreamPace:
    """The clock of all streams of one engine.

    Args:
        pause_s: seconds between two outputs of a stream; from its first to its second half to one and a half times as
            many. 0: an output per step.
    """

    def __init__(self, pause_s: float = 0.0, clock: Callable[[], float] = time.monotonic):
        self._pause_s = pause_s
        self._clock = clock
        self._now = 0.0
        self._interval_s = 0.0

    def begin_step(self, num_streams: int) -> None:
        """The outputs of a step are asked for next; so many requests are open."""
        if self._pause_s:
            self._now = self._clock()
            self._interval_s = self._pause_s * max(1.0, num_streams / STREAMS)

    def is_due(self, due_s: float) -> bool:
        """Whether a stream whose next output is due at `due_s` may have it."""
        return self._now >= due_s

    def next_due(self) -> float:
        """When a stream that has an output now may have the next."""
        if not self._interval_s:
            return self._now
        return math.floor(self._now / self._interval_s + 1.5) * self._interval_s
