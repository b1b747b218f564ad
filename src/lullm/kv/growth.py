"""Growth: counts the free blocks that the next tokens need, and the tokens that fit into the free blocks."""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq

from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.kv.cache_group import CacheGroup
from lullm.types.sequence import Sequence
from lullm.units import cdiv


class Growth:
    """Counts for the sequences of one pool; allocates nothing. `tables` are by seq_id, recurrent groups' last."""

    def __init__(
        self,
        block_size: int,
        groups: Seq[CacheGroup],
        pool: BlockAllocator,
        tables: Mapping[int, tuple[BlockTable, ...]],
    ) -> None:
        self._block_size = block_size
        self._pool = pool
        self._tables = tables
        self._num_groups = len(groups)
        self._num_token_groups = sum(group.keeps_tokens for group in groups)
        self._num_state_blocks = sum(group.num_state_blocks for group in groups)
        self._is_simple = all(group.keeps_tokens and group.window is None for group in groups)

    def has_slots(self, num_seqs: int) -> bool:
        """Whether the next token of any `num_seqs` running sequences fits for certain; False: count exactly."""
        return self._is_simple and num_seqs * self._num_groups <= self._pool.num_free

    def can_append_slots(self, seqs: Seq[Sequence], num_tokens: int = 1) -> bool:
        """Whether the next `num_tokens` tokens of each sequence, or all that it has, fit."""
        # An upper bound first: counting exactly takes a sixth of a scheduler's step.
        num_free, most = self._pool.num_free, len(seqs) * self.most_touched(num_tokens)
        return most <= num_free or self.num_touched(seqs, num_tokens) <= num_free

    def num_appendable(self, seq: Sequence, num_tokens: int) -> int:
        """How many of the next `num_tokens` tokens fit into the sequence's blocks and the free ones."""
        if self.most_touched(num_tokens) <= self._pool.num_free:
            return num_tokens
        tables, start = self._tables[seq.seq_id], seq.num_computed_tokens
        num_free = self._pool.num_free - _num_copied(tables, start)
        growing = tables[: self._num_token_groups]
        if not growing:  # states do not grow: there is room for their copies, or not
            return num_tokens if num_free >= 0 else 0
        return min(num_tokens, common_len(growing, num_free) * self._block_size - start)

    def num_guess_slots(self, seq: Sequence, num_others: int) -> int:
        """Guesses that fit after all tokens of `seq`, beside the next tokens of `num_others` sequences.

        A guess never takes a block that another running sequence needs for its token of this step. With recurrent
        layers there are no guesses: a state cannot go back behind a wrong one.
        """
        if self._num_state_blocks:
            return 0
        tables, start = self._tables[seq.seq_id], seq.num_computed_tokens
        num_taken = num_others * self._num_groups + _num_copied(tables, start)
        num_free = max(self._pool.num_free - num_taken, 0)
        return max(common_len(tables, num_free) * self._block_size - len(seq), 0)

    def most_touched(self, num_tokens: int) -> int:
        """The most free blocks that the next `num_tokens` tokens of a sequence can take."""
        per_group = cdiv(num_tokens - 1, self._block_size) + 1
        return self._num_token_groups * per_group + self._num_state_blocks

    def num_touched(self, seqs: Seq[Sequence], num_tokens: int = 1) -> int:
        """Free blocks that the next `num_tokens` tokens of all sequences, or as many as each has, take together."""
        ends = ((seq, min(seq.num_computed_tokens + num_tokens, len(seq))) for seq in seqs)
        appends = ((t, seq.num_computed_tokens, end) for seq, end in ends for t in self._tables[seq.seq_id])
        return num_touched(appends)


def common_len(tables: Iterable[BlockTable], num_free: int) -> int:
    """The greatest length, in blocks, that all tables can grow to if they share `num_free` blocks."""
    lens = sorted(len(table.block_ids) for table in tables)
    while True:
        length = (sum(lens) + num_free) // len(lens)
        if length >= lens[-1] or len(lens) == 1:
            return length
        lens.pop()  # it is longer than the others can become, so it gets none


def _num_copied(tables: Iterable[BlockTable], first_slot: int) -> int:
    """Free blocks that copies take before `first_slot` is written in all of these tables."""
    return sum(table.num_to_copy for table in tables if table.block_to_copy(first_slot) is not None)


def num_touched(appends: Iterable[tuple[BlockTable, int, int]]) -> int:
    """Free blocks that `append_slots` of all these (table, first slot, number of tokens) takes together."""
    fresh = 0
    # (shared block, tables that hold it, blocks to copy with it) -> number of writers
    to_copy: dict[tuple[int, int, int], int] = {}
    for table, first_slot, num_tokens in appends:
        fresh += table.num_fresh_blocks(num_tokens)
        shared = table.block_to_copy(first_slot)
        if shared is not None:
            key = shared, table.allocator.ref_count(shared), table.num_to_copy
            to_copy[key] = to_copy.get(key, 0) + 1
    # The last holder of a shared block writes in place.
    return fresh + sum(min(num, holders - 1) * weight for (_, holders, weight), num in to_copy.items())
