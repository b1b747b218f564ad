"""A fuzz target: rounds that a seed determines, and what must hold in each."""

import random
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path

from lullm.machine.memory import resident_bytes


class Target(ABC):
    """Built once, then any number of rounds.

    Args:
        folder: for files, removed afterwards.

    Attributes:
        counts: what the rounds have done so far, for the report.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.counts: Counter[str] = Counter()

    @abstractmethod
    def round(self, rng: random.Random) -> None:
        """One round, of which all chance comes from `rng`. Raises AssertionError: something does not hold."""

    def resident_bytes(self) -> int:
        """Memory of the process under test."""
        return resident_bytes()

    def close(self) -> None:  # noqa: B027  # most targets hold nothing
        """Give back what the target holds."""
