"""StateSnapshots: which states of recurrent layers stay in the prefix cache, and when they can be found.

A prefix can be continued only from a state behind exactly that prefix, and a state takes as much memory as the keys of
thousands of tokens. So few are kept: behind the last full block of a prompt that a repetition can use, since
conversations go on there, and one each so many tokens. A step ends at such a border.

A state is found from the plan on that follows its step: a plan copies states before it computes anything.
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
"""Tokens between two snapshots at least; a step that ends early costs one more pass over the weights."""


class StateSnapshots:
    """The borders of one model, and the states that wait for the next plan.

    In tokens, two snapshots are as far apart as a group of attention layers fills blocks for in a state's place, so
    that at most about half of the cache holds states.
    """

    def __init__(self, block_size: int, groups: Seq[CacheGroup], enable_prefix_caching: bool):
        self._is_on = enable_prefix_caching and not all(cache.keeps_tokens for cache in groups)
        num_growing = max(sum(cache.keeps_tokens for cache in groups), 1)
        num_blocks = sum(cache.num_state_blocks for cache in groups) / num_growing
        self._block_size = block_size
        self._interval = round_up(max(LEAST_INTERVAL, int(num_blocks * block_size)), block_size)
        self._waiting: list[tuple[Sequence, int]] = []

    def num_until_next(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> int:
        """How many of the next `num_tokens` tokens a step may compute so that no state worth keeping is passed by.

        A group of several sequences keeps none.
        """
        if not self._is_on or len(group.unfinished) > 1:
            return num_tokens
        start = seq.num_computed_tokens
        return min(num_tokens, self._next_border(seq, start) - start)

    def pass_by(self, group: SequenceGroup, seq: Sequence, tables: Seq[BlockTable]) -> None:
        """A step of the sequence has been planned, up to its computed tokens; its tables are about to be written."""
        if not self._is_on:
            return
        end = seq.num_computed_tokens
        if len(group.unfinished) > 1:
            for table in tables:
                if isinstance(table, StateTable):
                    table.give_up_snapshot()  # its room may be promised to the others
        elif end == self._next_border(seq, end - 1):
            self._waiting.append((seq, end))

    def keep_all(self, tables: Mapping[int, Seq[BlockTable]], pool: BlockAllocator) -> None:
        """The steps that were planned come first: their states can be found, if the sequences are still there."""
        for seq, end in self._waiting:
            is_there = seq.num_computed_tokens == end and seq.num_known_tokens >= end
            for table in tables.get(seq.seq_id, ()):
                if is_there and isinstance(table, StateTable) and table.allocator is pool and table.block_ids:
                    table.keep_snapshot(seq.token_ids, end // self._block_size)
        self._waiting.clear()

    def forget(self) -> None:
        """Nothing that was computed so far is to be found."""
        self._waiting.clear()

    def _next_border(self, seq: Sequence, start: int) -> int:
        """The first border behind `start` tokens."""
        border = start - start % self._interval + self._interval
        last = (seq.prompt_len - 1) // self._block_size * self._block_size
        return last if start < last < border else border
