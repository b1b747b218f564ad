"""What the pool would hold if every request got one contiguous piece at its start, as engines did before paging.

Three reservations: the model's maximum; the prompt and the next power of two of the output's length; an oracle that
knows the output's length. Two ways to place them: the buddy allocator that the PagedAttention paper assumes (sizes
are rounded up to powers of two), and first fit.
"""

import bisect
import heapq
from typing import Protocol

from null_model import MAX_MODEL_LEN, NUM_SLOTS, Lengths, Usage, WarmUp


def reserved(request: Lengths, policy: str) -> int:
    """Slots that a request gets at its start: 'max', 'pow2' or 'oracle'."""
    if policy == "max":
        return MAX_MODEL_LEN
    output_len = request.output_len
    if policy == "pow2":
        output_len = 1 << (output_len - 1).bit_length()
    return min(request.prompt_len + output_len, MAX_MODEL_LEN)


class Placement(Protocol):
    """Where pieces lie."""

    def allocate(self, size: int) -> int | None:
        """The start of a free piece; None if there is none that large."""
        ...

    def release(self, start: int, size: int) -> None:
        """The piece is free again."""
        ...


class BuddyPlacement:
    """Pieces of a power of two, split in halves and merged with their other halves."""

    def __init__(self, num_slots: int = NUM_SLOTS):
        self._free: dict[int, set[int]] = {1 << order: set() for order in range(num_slots.bit_length())}
        start = 0
        for size in reversed(self._free):  # the pool is no power of two: the largest aligned pieces that it is made of
            if num_slots & size:
                self._free[size].add(start)
                start += size

    def allocate(self, size: int) -> int | None:
        size = 1 << (size - 1).bit_length()
        larger = size
        while larger in self._free and not self._free[larger]:
            larger *= 2
        if larger not in self._free:
            return None
        start = min(self._free[larger])
        self._free[larger].remove(start)
        while larger > size:
            larger //= 2
            self._free[larger].add(start + larger)
        return start

    def release(self, start: int, size: int) -> None:
        size = 1 << (size - 1).bit_length()
        while start ^ size in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start &= ~size
            size *= 2
        self._free[size].add(start)


class FirstFitPlacement:
    """Pieces of any size, in the first hole that is large enough."""

    def __init__(self, num_slots: int = NUM_SLOTS):
        self._holes = [(0, num_slots)]  # (start, end), in order

    def allocate(self, size: int) -> int | None:
        for index, (start, end) in enumerate(self._holes):
            if end - start >= size:
                self._holes[index : index + 1] = [(start + size, end)] if end - start > size else []
                return start
        return None

    def release(self, start: int, size: int) -> None:
        end = start + size
        index = bisect.bisect_left(self._holes, (start, end))
        if index < len(self._holes) and self._holes[index][0] == end:
            end = self._holes.pop(index)[1]
        if index > 0 and self._holes[index - 1][1] == start:
            index -= 1
            start = self._holes.pop(index)[0]
        self._holes.insert(index, (start, end))


def saturate(requests: list[Lengths], policy: str, placement: Placement) -> Usage:
    """Serve the requests in order, each as soon as its piece fits; observed as `null_model.saturate` does."""
    usage = Usage()
    running: list[tuple[int, int, int, int]] = []  # (step of the end, start, reserved, tokens at the end), a heap
    tokens = 0
    step = 0
    warm_up = WarmUp()
    for request in requests:
        size = reserved(request, policy)
        while (start := placement.allocate(size)) is None:
            # One step: a request holds its prompt after its first one, and one token more after each other.
            tokens += len(running)
            step += 1
            num_ended = 0
            while running and running[0][0] == step:
                _, end_start, end_size, held = heapq.heappop(running)
                placement.release(end_start, end_size)
                tokens -= held
                num_ended += 1
            if warm_up.is_over(True, num_ended, len(running)):
                usage.num_steps += 1
                usage.seqs += len(running)
                usage.groups += len(running)
                usage.tokens += tokens
                usage.allocated += sum(piece[2] for piece in running)
        tokens += request.prompt_len - 1
        heapq.heappush(running, (step + request.output_len, start, size, request.prompt_len - 1 + request.output_len))
    return usage.observed()
