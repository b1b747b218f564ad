"""StepCosts: measured seconds of a step by its number of rows, and what lies between the measurements."""

from bisect import bisect_left, insort
from collections import deque
from statistics import median

_NUM_KEPT = 5
"""Measurements of a number of rows: the median of so many bears with a slow step in between."""


class StepCosts:
    """Seconds by number of rows, from the latest measurements.

    The first measurement of each number is dropped: a step of a new size is recorded, and touches new memory.
    """

    def __init__(self) -> None:
        self._kept: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}
        self._sizes: list[int] = []

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._sizes

    @property
    def smallest(self) -> int:
        """The smallest measured number of rows; 0: nothing was measured yet."""
        return self._sizes[0] if self._sizes else 0

    def add(self, num_rows: int, seconds: float) -> None:
        """A step of `num_rows` rows took so long. Without a time (0) it is no measurement."""
        if seconds <= 0.0:
            return
        kept = self._kept.get(num_rows)
        if kept is None:
            self._kept[num_rows] = deque(maxlen=_NUM_KEPT)
            return
        if not kept:
            insort(self._sizes, num_rows)
        kept.append(seconds)
        self._medians[num_rows] = median(kept)

    def seconds(self, num_rows: int) -> float | None:
        """The expected seconds of a step; None: no step was measured yet.

        Between two measured sizes, and above the largest, on the line through them; below the smallest as much as that,
        since a step mostly waits for the weights. With one size measured all others take as long, until tried.
        """
        sizes, medians = self._sizes, self._medians
        if not sizes:
            return None
        found = medians.get(num_rows)
        if found is not None:
            return found
        place = bisect_left(sizes, num_rows)
        if place == 0 or len(sizes) == 1:
            return medians[sizes[0]]
        low, high = (sizes[0], sizes[-1]) if place == len(sizes) else (sizes[place - 1], sizes[place])
        slope = max((medians[high] - medians[low]) / (high - low), 0.0)
        base = high if place == len(sizes) else low
        return medians[base] + slope * (num_rows - base)
