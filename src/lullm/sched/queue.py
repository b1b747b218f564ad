"""The order of sequence groups, and queues of those that wait or are swapped out, in that order."""

import heapq
from collections.abc import Iterator, Sequence

from lullm.config.engine_option import SchedulingPolicy
from lullm.types.request import GenerateRequest
from lullm.types.sequence import SequenceGroup

OrderKey = tuple[int, int]
"""(priority, arrival number): the smaller goes first. With policy 'fcfs' every priority is 0."""


class Order:
    """Gives every group a key at its arrival; preemptions do not change the key."""

    def __init__(self, policy: SchedulingPolicy):
        self._by_priority = policy == "priority"
        self._num_arrivals = 0
        self._keys: dict[str, OrderKey] = {}

    def register(self, group: SequenceGroup) -> None:
        """Register an arrival, after all groups that are here."""
        self._num_arrivals += 1
        self._keys[group.request_id] = (group.request.priority if self._by_priority else 0, self._num_arrivals)

    def sorted(self, requests: Sequence[GenerateRequest]) -> list[int]:
        """The numbers of these requests, which arrive one after the other, in order."""
        return sorted(range(len(requests)), key=lambda i: (requests[i].priority if self._by_priority else 0, i))

    def forget(self, group: SequenceGroup) -> None:
        """The group has ended; its request id may be used again."""
        del self._keys[group.request_id]

    def key(self, group: SequenceGroup) -> OrderKey:
        """The group's place in the order."""
        return self._keys[group.request_id]


class GroupQueue:
    """Groups in order. A preempted group comes back before all that arrived after it.

    `push`, `pop` and `remove` are O(log n) amortised: a removed group's heap entry stays until it reaches the top.
    """

    def __init__(self, order: Order):
        self._order = order
        self._heap: list[tuple[OrderKey, str]] = []
        self._groups: dict[str, SequenceGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group.request_id in self._groups

    def __iter__(self) -> Iterator[SequenceGroup]:
        """In no particular order."""
        return iter(self._groups.values())

    def push(self, group: SequenceGroup) -> None:
        self._groups[group.request_id] = group
        heapq.heappush(self._heap, (self._order.key(group), group.request_id))

    def peek(self) -> SequenceGroup | None:
        """The group that goes next, left in the queue; None if the queue is empty."""
        while self._heap:
            key, request_id = self._heap[0]
            group = self._groups.get(request_id)
            # If the same id came back as another request, its new entry lies further down.
            if group is not None and self._order.key(group) == key:
                return group
            heapq.heappop(self._heap)
        return None

    def pop(self) -> SequenceGroup:
        """Remove and return the group that `peek` returned."""
        _, request_id = heapq.heappop(self._heap)
        return self._groups.pop(request_id)

    def remove(self, group: SequenceGroup) -> None:
        """Remove a group at any place."""
        del self._groups[group.request_id]


def first_in_order(a: GroupQueue, b: GroupQueue, order: Order) -> tuple[GroupQueue, SequenceGroup] | None:
    """The first group of both queues, left in its queue, and that queue; None if both are empty."""
    first_a, first_b = a.peek(), b.peek()
    if first_b is None or (first_a is not None and order.key(first_a) < order.key(first_b)):
        return None if first_a is None else (a, first_a)
    return b, first_b
