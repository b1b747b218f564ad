"""Duplicate: a full block whose content another block had first. The next plan merges it with that block.

Two sequences write equal blocks when neither can find the other's: both draw the same tokens at the same time, or a
prompt is computed for its log-probabilities. The sequences of a group may share such a block. So all of their tables
exchange it at once, which frees it: the exchange never costs a block.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lullm.kv.block_table import BlockTable
from lullm.types.sequence import SequenceGroup


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Block `block_id`, at `index` in tables of the group; `cache` is the cache group's number.

    `content`: its hash. Not every table that holds the block knows it: of a group that another process brought back,
    only the one that fills the block does.
    """

    group: SequenceGroup
    cache: int
    index: int
    block_id: int
    content: bytes

    def merge(self, tables: Mapping[int, Sequence[BlockTable]]) -> None:
        """Exchange the block for the first one. If that is gone, make this one findable.

        This happens one plan after the promotion. In the step of the promotion the block is still written, and writing
        to a block that other sequences read could change its low bits. `tables` are by seq_id and cache group.
        """
        own = (tables[seq.seq_id][self.cache] for seq in self.group.unfinished)
        holders = [table for table in own if table.has(self.index, self.block_id)]
        if not holders:
            return
        pool = holders[0].allocator
        if pool.promote(self.block_id, self.content):
            return
        first = pool.find(self.content)
        assert first is not None
        if pool.is_drafted[self.block_id] and not pool.is_drafted[first]:
            return  # the draft model would have to see these tokens again
        for table in holders:
            table.exchange(self.index, first)
