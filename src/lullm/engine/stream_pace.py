"""StreamPace: the times of a stream's outputs. Tokens drawn in between come with the next output.

An output costs 35 us on its way to a socket, and competes for Python's lock with the step loop. A small model draws 400
tokens a second for each of 32 streams. Sending each alone took a third of the throughput, and is too fast to read.

A model that takes longer for a step than the pause has an output per step, and every stream its first token at once.
All streams have their outputs at the ticks of one clock, so one pass of the event loop sends them. With a clock for
each stream, every step had outputs of some of them.
"""

import math
import time
from collections.abc import Callable

STREAMS = 64
"""More streams have longer pauses, in proportion."""


class StreamPace:
    """The clock of all streams of one engine.

    Args:
        pause_s: seconds between two ticks. After an output, a stream skips a tick less than half a pause away. 0: an
            output per step.
    """

    def __init__(self, pause_s: float = 0.0, clock: Callable[[], float] = time.monotonic):
        self._pause_s = pause_s
        self._clock = clock
        self._now = 0.0
        self._interval_s = 0.0

    def begin_step(self, num_streams: int) -> None:
        """Begin a step whose outputs are asked for next. `num_streams`: open requests."""
        if self._pause_s:
            self._now = self._clock()
            self._interval_s = self._pause_s * max(1.0, num_streams / STREAMS)

    def is_due(self, due_s: float) -> bool:
        """Whether a stream may have an output now. `due_s`: from `next_due`."""
        return self._now >= due_s

    def next_due(self) -> float:
        """The time of the next output of a stream that has one now."""
        if not self._interval_s:
            return self._now
        return math.floor(self._now / self._interval_s + 1.5) * self._interval_s
