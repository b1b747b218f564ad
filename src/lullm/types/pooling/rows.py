"""PooledRows: sums the pooled rows of one sequence over its steps, and makes the caller's values of the sum.

Rows that are each wanted for themselves: `token_rows`.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from lullm.types.pooling.params import Pooling, PoolingActivation, PoolingKind

PackedFloats = bytes
"""float32 in the machine's byte order."""

RowRange = tuple[int, int]
"""(first row, row after the last) of a span."""


@dataclass(slots=True)
class PooledRows:
    """The rows of one sequence, summed over its spans.

    A worker keeps nothing between steps, so each step sends the sum of its own rows, and the last one completes it.
    """

    kind: PoolingKind
    prompt_len: int
    num_rows: int = 0
    values: "array[float]" = field(default_factory=lambda: array("d"))

    are_summed = True

    @property
    def first_wanted(self) -> int:
        """The first place whose row counts: a cached prefix may end before it."""
        return self.prompt_len - 1 if self.kind == "last" else 0

    @property
    def is_complete(self) -> bool:
        return self.num_rows == (self.prompt_len if self.kind == "mean" else 1)

    def wanted(self, start: int, end: int) -> RowRange | None:
        """The rows to pool in a span over the positions `start`..`end` - 1, from its first row; None: no row."""
        first, last = {"last": (self.prompt_len - 1, self.prompt_len), "cls": (0, 1), "mean": (start, end)}[self.kind]
        return (first - start, last - start) if start <= first < end else None

    def add(self, packed: PackedFloats, num_rows: int) -> None:
        """Add the sum of `num_rows` rows."""
        values = memoryview(packed).cast("f")
        if not self.num_rows:
            self.values = array("d", values)
        else:
            self.values = array("d", map(float.__add__, self.values, values))
        self.num_rows += num_rows

    def clear(self) -> None:
        """Start again: the sequence is computed again."""
        self.num_rows, self.values = 0, array("d")

    @property
    def is_finite(self) -> bool:
        return all(map(math.isfinite, self.values))

    def data(self, pooling: Pooling) -> list[float]:
        """The caller's vector, once the sum is complete."""
        return finished(self.mean(), pooling)

    def mean(self) -> list[float]:
        """The mean of the rows, once the sum is complete."""
        return [value / self.num_rows for value in self.values]


def finished(values: Sequence[float], pooling: Pooling) -> list[float]:
    """The caller's values: the leading dimensions, then the activation."""
    return activated(list(values[: pooling.dimensions]), pooling.activation)


def activated(values: list[float], activation: PoolingActivation) -> list[float]:
    """The values after an activation. A vector of zeros stays one."""
    if activation == "normalize":
        norm = math.hypot(*values)
        return [value / norm for value in values] if norm else values
    if activation == "sigmoid":
        return [_sigmoid(value) for value in values]
    if activation == "softmax":
        most = max(values)
        exponentials = [math.exp(value - most) for value in values]
        total = math.fsum(exponentials)
        return [value / total for value in exponentials]
    return values


def _sigmoid(value: float) -> float:
    if value >= 0:
        return 1 / (1 + math.exp(-value))
    return math.exp(value) / (1 + math.exp(value))
