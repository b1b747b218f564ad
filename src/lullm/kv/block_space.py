"""BlockSpaceManager: admission, growth, sharing and release of the KV blocks of sequence groups."""

import enum
from dataclasses import dataclass

from lullm.kv.allocator import BlockAllocator, NaiveBlockAllocator, PrefixCachingBlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.types.step import BlockPair
from lullm.units import cdiv


class AllocStatus(enum.Enum):
    """OK: the group can be allocated now; LATER: when others have freed blocks; NEVER: it is larger than the pool."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


@dataclass(slots=True)
class PrefixCacheStats:
    """Counted in tokens at each admission: looked up, and found."""

    queries: int = 0
    hits: int = 0


class BlockSpaceManager:
    """One pool of `num_blocks` blocks of `block_size` tokens, and the block tables of the sequences that hold them.

    `watermark` is the share of the pool that admission leaves free, so that running sequences can grow before the
    first preemption.
    """

    def __init__(
        self, num_blocks: int, block_size: int, watermark: float = 0.01, enable_prefix_caching: bool = True
    ) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_cache = PrefixCacheStats()
        self._watermark_blocks = int(watermark * num_blocks)
        self._allocator: BlockAllocator = (
            PrefixCachingBlockAllocator(num_blocks) if enable_prefix_caching else NaiveBlockAllocator(num_blocks)
        )
        self._tables: dict[int, BlockTable] = {}

    @property
    def num_free_blocks(self) -> int:
        return self._allocator.num_free

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self._allocator.num_free

    def num_required_blocks(self, group: SequenceGroup) -> int:
        """Blocks the whole group takes when nothing of it is cached.

        Sequences of one group share the full blocks of their prompt; those still to be forked copy the partly filled
        block at their first token and so take one block each.
        """
        leader, *others = group.unfinished
        shared = leader.prompt_len // self.block_size
        required = cdiv(len(leader), self.block_size) + group.num_unborn
        return required + sum(cdiv(len(seq), self.block_size) - shared for seq in others)

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Whether `allocate(group)` fits, watermark included. The watermark does not bind while the pool is idle."""
        required = self.num_required_blocks(group)
        if required > self.num_blocks:
            return AllocStatus.NEVER
        leader = group.unfinished[0]
        # Cached blocks that somebody uses cost nothing; cached blocks in the free queue leave it like any other.
        in_use = sum(self._allocator.ref_count(b) > 0 for b in self._find_cached(group, leader))
        free_after = self._allocator.num_free - (required - in_use)
        reserve = self._watermark_blocks if self.num_used_blocks else 0
        return AllocStatus.OK if free_after >= reserve else AllocStatus.LATER

    def allocate(self, group: SequenceGroup) -> int:
        """Give every unfinished sequence of the group blocks for all its tokens, and set its computed tokens.

        Returns:
            The number of the leader's tokens whose KV was found in the prefix cache. The other sequences start
            behind the full blocks of the prompt, which they share with the leader; they must not be computed before
            the leader has got there.
        """
        leader, *others = group.unfinished
        cached = self._find_cached(group, leader)
        self._table(leader).allocate(len(leader), cached)
        leader.num_computed_tokens = len(cached) * self.block_size
        self.prefix_cache.queries += len(leader)
        self.prefix_cache.hits += leader.num_computed_tokens
        shared = self._table(leader).block_ids[: leader.prompt_len // self.block_size]
        for seq in others:
            self._table(seq).allocate(len(seq), shared)
            seq.num_computed_tokens = len(shared) * self.block_size
        return leader.num_computed_tokens

    def can_append_slots(self, seqs: list[Sequence]) -> bool:
        """Whether `append_slots` fits for all of them together."""
        touched = sum(self._tables[s.seq_id].num_blocks_touched_by_append(s.num_computed_tokens, len(s)) for s in seqs)
        return touched <= self._allocator.num_free

    def append_slots(self, seq: Sequence) -> list[BlockPair]:
        """Make the slots of all uncomputed tokens writable; the (source, destination) pairs to be copied first."""
        return self._tables[seq.seq_id].append_slots(seq.num_computed_tokens, len(seq))

    def promote(self, seq: Sequence) -> None:
        """Blocks of `seq` that its computed tokens fill become immutable, and findable by their content."""
        if self.enable_prefix_caching:
            self._tables[seq.seq_id].promote(seq.token_ids, seq.num_computed_tokens)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child has the parent's tokens so far: it shares all of its blocks."""
        self._tables[child.seq_id] = self._tables[parent.seq_id].fork()

    def release(self, seq: Sequence) -> None:
        """Let go of the blocks of a preempted sequence; what is known of their content stays for its return."""
        self._tables[seq.seq_id].free()
        seq.num_computed_tokens = 0

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks of a finished sequence and forget it. Idempotent."""
        table = self._tables.pop(seq.seq_id, None)
        if table is not None:
            table.free()

    def block_ids(self, seq: Sequence) -> list[int]:
        """The physical blocks of a sequence in order; the caller must not change the list."""
        return self._tables[seq.seq_id].block_ids

    def reset_prefix_cache(self) -> None:
        """Forget all cached contents; blocks in use stay with their sequences."""
        self._allocator.reset_cache()

    def check_conservation(self) -> None:
        """Raise AssertionError unless reference counts equal the tables' holdings and all others are free.

        For tests and idle engines; O(blocks).
        """
        held = [0] * self.num_blocks
        for table in self._tables.values():
            for block_id in table.block_ids:
                held[block_id] += 1
        counts = [self._allocator.ref_count(b) for b in range(self.num_blocks)]
        assert held == counts, "a reference count differs from the tables that hold the block"
        assert self._allocator.num_free == held.count(0), "free blocks are lost or handed out twice"

    def _table(self, seq: Sequence) -> BlockTable:
        table = self._tables.get(seq.seq_id)
        if table is None:
            table = self._tables[seq.seq_id] = BlockTable(self._allocator, self.block_size)
        return table

    def _find_cached(self, group: SequenceGroup, leader: Sequence) -> list[int]:
        # Prompt log-probabilities need the logits of every prompt token, so nothing of the prompt may be skipped.
        if not self.enable_prefix_caching or group.request.params.prompt_logprobs is not None:
            return []
        return self._table(leader).find_cached(leader.token_ids)
