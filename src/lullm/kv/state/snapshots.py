"""StateSnapshots: which states of recurrent layers the prefix cache keeps, and from when they can be found.

A prefix can be continued only from a state at exactly its end, and a state takes as much memory as the keys of
thousands of tokens. So few are kept: one at the last full block of a prompt that a repetition can use, since
conversations continue there, and one every so many tokens. A step ends at such a border.

A state can be found from the plan after its step on: a plan copies states before it computes.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.kv.cache_group import CacheGroup
from lullm.kv.state.table import StateTable
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.units import round_up

LEAST_INTERVAL = 256
"""Least number of tokens between two snapshots; a step that ends early costs one more pass over the weights."""


class StateSnapshots:
    """The borders of one model, and the states that wait for the next plan.

    The distance of two snapshots, in tokens, is that for which attention layers fill as many blocks as a state takes.
    So at most about half of the cache holds states.
    """

    def __init__(self, block_size: int, groups: Seq[CacheGroup], enable_prefix_caching: bool):
        self._is_on = enable_prefix_caching and not all(cache.keeps_tokens for cache in groups)
        num_growing = max(sum(cache.keeps_tokens for cache in groups), 1)
        num_blocks = sum(cache.num_state_blocks for cache in groups) / num_growing
        self._block_size = block_size
        self._interval = round_up(max(LEAST_INTERVAL, int(num_blocks * block_size)), block_size)
        self._waiting: list[tuple[Sequence, int]] = []

    def num_until_next(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> int:
        """How many of the next `num_tokens` tokens a step may compute before it reaches a state worth keeping.

        A group of several sequences keeps none.
        """
        if not self._is_on or len(group.unfinished) > 1:
            return num_tokens
        start = seq.num_computed_tokens
        return min(num_tokens, self._next_border(seq, start) - start)

    def pass_by(self, group: SequenceGroup, seq: Sequence, tables: Seq[BlockTable]) -> None:
        """A step of the sequence is planned, up to its computed tokens; its tables are about to be written."""
        if not self._is_on:
            return
        end = seq.num_computed_tokens
        if len(group.unfinished) > 1:
            for table in tables:
                if isinstance(table, StateTable):
                    table.give_up_snapshot()  # its room may be reserved for other sequences
        elif end == self._next_border(seq, end - 1):
            self._waiting.append((seq, end))

    def keep_all(self, tables: Mapping[int, Seq[BlockTable]], pool: BlockAllocator) -> None:
        """Make the states of earlier plans findable, if their sequences still exist. Before the next plan."""
        for seq, end in self._waiting:
            is_there = seq.num_computed_tokens == end and seq.num_known_tokens >= end
            for table in tables.get(seq.seq_id, ()):
                if is_there and isinstance(table, StateTable) and table.allocator is pool and table.block_ids:
                    table.keep_snapshot(seq.token_ids, end // self._block_size)
        self._waiting.clear()

    def forget(self) -> None:
        """Make no state findable that was computed so far."""
        self._waiting.clear()

    def _next_border(self, seq: Sequence, start: int) -> int:
        """The first border after `start` tokens."""
        border = start - start % self._interval + self._interval
        last = (seq.prompt_len - 1) // self._block_size * self._block_size
        return last if start < last < border else border
