"""IdleTrim: returns memory that requests have left in malloc to the system once the engine is idle.

malloc keeps freed memory (`lullm.ops.cpu.library` tells it to), since the next step needs it again. An idle engine does
not: after an answer with 5.5 million log-probabilities 148 MiB stayed.
"""

import gc
from collections.abc import Callable

from lullm.machine.memory import trim_malloc

TRIM_S = 5.0
"""Idle seconds before the first trim, which takes 2 ms; the next step then pays the page faults of its own memory."""
COLLECT_S = 60.0
"""Idle seconds before the second trim, after a full garbage collection, which stops the process for 75 ms."""


class IdleTrim:
    """Counts idle time, and trims twice in each idle period. For one thread; `busy` and `idle` may be called
    repeatedly.

    Args:
        clock: monotonic seconds, such as `time.monotonic`.
    """

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._idle_since: float | None = None
        # (idle seconds, the trim that is due then), the next one last
        self._left: list[tuple[float, Callable[[], None]]] = []
        self.busy()

    def busy(self) -> None:
        """Requests run."""
        self._idle_since = None
        self._left = [(COLLECT_S, _collect), (TRIM_S, trim_malloc)]

    def idle(self) -> None:
        """No requests run: trim if it is due."""
        if self._idle_since is None:
            self._idle_since = self._clock()
        elif self._left and self._left[-1][0] <= self._clock() - self._idle_since:
            _, trim = self._left.pop()
            trim()

    def wait_s(self) -> float | None:
        """Seconds until `idle` has work to do; None: no work while the engine stays idle."""
        if self._idle_since is None or not self._left:
            return None
        return max(self._idle_since + self._left[-1][0] - self._clock(), 0.0)


def _collect() -> None:
    gc.collect()
    trim_malloc()
