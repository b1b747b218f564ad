"""RequestSeeds: the seeds of requests that bring none."""

import random
from collections.abc import Sequence


class RequestSeeds:
    """Draws the seeds of one engine. `seed`: the engine's own."""

    def __init__(self, seed: int | None):
        self._generator = random.Random(seed)

    def draw(self) -> int:
        """The next seed, of 63 bits."""
        return self._generator.getrandbits(63)

    @property
    def state(self) -> tuple[int, list[int]]:
        """The generator's state: version and numbers."""
        version, numbers, _ = self._generator.getstate()
        return version, list(numbers)

    def restore(self, version: int, numbers: Sequence[int]) -> None:
        """Go on from a state. Raises ValueError, TypeError, OverflowError: it is none."""
        self._generator.setstate((version, tuple(numbers), None))
