"""Collective: what the workers of a group do together. Every member makes the same calls in the same order."""

from typing import Protocol

from torch import Tensor

from lullm.units import cdiv


class Collective(Protocol):
    """One member's end of a group of `size` members. Blocking, unless a device orders the work itself.

    Raises:
        WorkerLostError: from any call, when another member has died or does not answer in time.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_(self, x: Tensor) -> None:
        """The sum over all members, in place. Summed in rank order, in float32, rounded once: every member has the
        same bits, whatever the number of rows."""
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """x `[N, C]` -> `[N, size * C]`: the columns of all members in rank order. All give the same shape."""
        ...

    def deal_rows(self, x: Tensor) -> Tensor:
        """x `[N, C]` -> `[R, size * C]`: as `all_gather` of those R rows that are this member's (`rows_of`)."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """To the member `to`, which receives into a tensor of this shape and type."""
        ...

    def receive_(self, x: Tensor, source: int) -> None:
        """What the member `source` sends, into x."""
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...


def rows_of(num_rows: int, rank: int, size: int) -> range:
    """The rows of a member of a group of `size`: as many for each, so that some may be those of two."""
    num_own = cdiv(num_rows, size)
    start = min(rank * num_own, num_rows - num_own)
    return range(start, start + num_own)


class Alone:
    """A group of one. Implements `Collective`."""

    rank = 0
    size = 1

    def all_reduce_(self, x: Tensor) -> None:
        pass

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def deal_rows(self, x: Tensor) -> Tensor:
        return x

    def send(self, x: Tensor, to: int) -> None:
        raise AssertionError("there is one worker only")

    def receive_(self, x: Tensor, source: int) -> None:
        raise AssertionError("there is one worker only")

    def close(self) -> None:
        pass
