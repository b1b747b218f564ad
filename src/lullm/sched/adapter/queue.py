"""AdapterQueue: the waiting groups, of which those whose adapter has no place stand aside.

A step computes with the adapters that lie in places, of which there are `max_loras`. A group uses a place from the time
it may be admitted to its end. Groups whose adapter has no place are parked, so that they block no others. They come in
when a place that no group uses is given to their adapter.

No adapter starves while others stay in use. Once a group is parked and no place is free, one place drains: groups that
come after the parked one no longer use it, and are parked themselves. The groups before it end some time, and then the
place is free. The other places go on.
"""

from collections.abc import Iterator

from lullm.sched.queue import GroupQueue, Order
from lullm.types.sequence import SequenceGroup
from lullm.types.step import NO_PLACE, AdapterMove

NO_ADAPTER = 0


class AdapterQueue(GroupQueue):
    """`peek` and `pop` see the groups that may run now; all other methods all that wait.

    Attributes:
        readable: the adapters that workers have read, by number. Only these get a place.
        num_moves: adapters that were put into a place since the start.
    """

    def __init__(self, order: Order, num_places: int):
        super().__init__(order)
        self.readable: set[int] = set()
        self.num_moves = 0
        self._adapters = [NO_ADAPTER] * num_places
        self._has_content = [False] * num_places
        self._users: list[set[str]] = [set() for _ in range(num_places)]  # ids of groups
        self._parked: dict[int, GroupQueue] = {}
        self._draining = NO_PLACE

    def __len__(self) -> int:
        return super().__len__() + self.num_parked

    def __contains__(self, group: SequenceGroup) -> bool:
        return super().__contains__(group) or group in self._parked.get(group.adapter, ())

    def __iter__(self) -> Iterator[SequenceGroup]:
        yield from super().__iter__()
        for queue in self._parked.values():
            yield from queue

    @property
    def num_places(self) -> int:
        return len(self._adapters)

    @property
    def num_parked(self) -> int:
        """Groups that wait for a place."""
        return sum(map(len, tuple(self._parked.values())))  # also read by other threads

    def push(self, group: SequenceGroup) -> None:
        """Queue a group; a preempted one keeps its place."""
        if group.adapter == NO_ADAPTER or group.adapter_place != NO_PLACE:
            super().push(group)
            return
        place = self._place_of(group.adapter)
        if place == NO_PLACE or self._comes_too_late(group, place):
            self._park(group)
        else:
            self._enter(group, place)

    def remove(self, group: SequenceGroup) -> None:
        if super().__contains__(group):
            super().remove(group)
            return
        queue = self._parked[group.adapter]
        queue.remove(group)
        if not len(queue):
            del self._parked[group.adapter]

    def leave(self, group: SequenceGroup) -> None:
        """The group has ended, wherever it was."""
        if group.adapter_place != NO_PLACE:
            self._users[group.adapter_place].discard(group.request_id)

    def seat(self, group: SequenceGroup) -> None:
        """A group that does not wait uses a place: its adapter's, or a free one, which there is."""
        if group.adapter != NO_ADAPTER:
            place = self._place_of(group.adapter)
            group.adapter_place = self._free_place() if place == NO_PLACE else place
            self._has_content[group.adapter_place] &= self._adapters[group.adapter_place] == group.adapter
            self._adapters[group.adapter_place] = group.adapter
            self._users[group.adapter_place].add(group.request_id)

    def in_use(self) -> set[int]:
        """The adapters of groups that use a place."""
        return {adapter for adapter, users in zip(self._adapters, self._users, strict=True) if users}

    def wanted(self) -> list[int]:
        """The adapters that workers should read before the next `assign`: those of places in use that were lost, and
        the next ones that get a place.
        """
        lost = [
            adapter
            for adapter, users, has in zip(self._adapters, self._users, self._has_content, strict=True)
            if users and not has
        ]
        if not (lost or self._parked):
            return []
        num_free = sum(not users for users in self._users)
        lost += [head.adapter for head in sorted(self._heads(), key=self._order.key)[:num_free]]
        return [adapter for adapter in dict.fromkeys(lost) if adapter not in self.readable]

    def ids_of(self, adapter: int) -> list[str]:
        """Ids of the unfinished requests with this adapter, wherever they are."""
        place, parked = self._place_of(adapter), self._parked.get(adapter, ())
        used = sorted(self._users[place]) if place != NO_PLACE else []
        return used + [group.request_id for group in parked]

    def assign(self) -> list[AdapterMove]:
        """Give free places to adapters that groups wait for, and let these groups in. For the plan that is being made,
        which must run. Moves again what places have lost.
        """
        moves: list[AdapterMove] = []
        for place, adapter in enumerate(self._adapters):
            if self._users[place] and not self._has_content[place]:
                assert adapter in self.readable, "it was wanted"
                moves.append((place, adapter))
        while (first := self._first_parked()) is not None:
            place = self._place_of(first.adapter)
            if place == NO_PLACE or not self._has_content[place]:
                place = place if place != NO_PLACE else self._free_place()
                if place == NO_PLACE:
                    self._drain(first)
                    break
                if first.adapter not in self.readable:
                    break
                self._adapters[place] = first.adapter
                moves.append((place, first.adapter))
            if place == self._draining:
                self._draining = NO_PLACE
            self._let_in(first.adapter, place)
        if not self._parked:
            self._draining = NO_PLACE
        for place, _ in moves:
            self._has_content[place] = True
        self.num_moves += len(moves)
        return moves

    def forget_places(self) -> None:
        """The memory of all places was released, or workers are new."""
        self._has_content = [False] * len(self._has_content)

    def forget(self, adapter: int) -> None:
        """The adapter is not in host memory any more, and no group uses it: its number means nothing now."""
        self.readable.discard(adapter)
        place = self._place_of(adapter)
        if place != NO_PLACE and not self._users[place]:
            self._adapters[place] = NO_ADAPTER

    # -- places --------------------------------------------------------------------------------------------------

    def _place_of(self, adapter: int) -> int:
        return self._adapters.index(adapter) if adapter in self._adapters else NO_PLACE

    def _free_place(self) -> int:
        """A place that no group uses, an empty one first; NO_PLACE: there is none."""
        free = [place for place, users in enumerate(self._users) if not users]
        return min(free, key=lambda place: self._adapters[place] != NO_ADAPTER, default=NO_PLACE)

    def _drain(self, first: SequenceGroup) -> None:
        """Choose a place that `first` shall get, the one with the fewest groups, and send those behind it away."""
        if self._draining == NO_PLACE:
            self._draining = min(range(len(self._users)), key=lambda place: len(self._users[place]))
        adapter = self._adapters[self._draining]
        behind = [g for g in super().__iter__() if g.adapter == adapter and self._comes_too_late(g, self._draining)]
        for group in behind:
            super().remove(group)
            self._users[self._draining].discard(group.request_id)
            group.adapter_place = NO_PLACE
            self._park(group)

    def _comes_too_late(self, group: SequenceGroup, place: int) -> bool:
        first = self._first_parked() if place == self._draining else None
        return first is not None and self._order.key(group) > self._order.key(first)

    def _first_parked(self) -> SequenceGroup | None:
        return min(self._heads(), key=self._order.key, default=None)

    def _heads(self) -> list[SequenceGroup]:
        """The first parked group of each adapter."""
        return [head for queue in self._parked.values() if (head := queue.peek()) is not None]

    def _park(self, group: SequenceGroup) -> None:
        if group.adapter not in self._parked:
            self._parked[group.adapter] = GroupQueue(self._order)
        self._parked[group.adapter].push(group)

    def _let_in(self, adapter: int, place: int) -> None:
        for group in self._parked.pop(adapter):
            self._enter(group, place)

    def _enter(self, group: SequenceGroup, place: int) -> None:
        group.adapter_place = place
        self._users[place].add(group.request_id)
        super().push(group)
