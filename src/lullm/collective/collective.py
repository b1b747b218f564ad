"""Collective: joint operations of a group's workers. Every member makes the same calls in the same order."""

from typing import Protocol

from torch import Tensor

from lullm.units import cdiv


class Collective(Protocol):
    """One member's end of a group of `size` members. Blocking, unless a device orders the work itself.

    Raises:
        WorkerLostError: from any call: another member has died or does not answer in time.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce_(self, x: Tensor) -> None:
        """The sum over all members, in place.

        Summed in rank order, in float32, rounded once: every member has the same bits, for any number of rows.
        """
        ...

    def all_gather(self, x: Tensor) -> Tensor:
        """x `[N, C]` -> `[N, size * C]`: the columns of all members in rank order. All pass the same shape."""
        ...

    def deal_rows(self, x: Tensor) -> Tensor:
        """x `[N, C]` -> `[R, size * C]`: as `all_gather`, for only this member's R rows (`rows_of`)."""
        ...

    def send(self, x: Tensor, to: int) -> None:
        """Send x to the member `to`, which receives into a tensor of this shape and type."""
        ...

    def receive_(self, x: Tensor, source: int) -> None:
        """Receive into x what the member `source` sends."""
        ...

    def close(self) -> None:
        """Leave the group. Idempotent."""
        ...


def rows_of(num_rows: int, rank: int, size: int) -> range:
    """The rows of a member of a group of `size`. All members have equally many, so some rows may belong to two."""
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
