"""BlockTable: where the tokens of one sequence stand. Token i is in slot i % block_size of block i // block_size."""

from collections.abc import Sequence

from lullm.kv.allocator import BlockAllocator
from lullm.kv.hashing import extend_hashes
from lullm.types.step import BlockPair
from lullm.units import cdiv


class BlockTable:
    """The blocks of one sequence, in order. Blocks are taken on demand, so at most the last one is partly filled.

    The chained hashes of the sequence's full blocks are kept here too, and survive `free`: a preempted or waiting
    sequence is looked up again and again, and hashing a prompt of 10,000 tokens anew costs a millisecond.
    """

    __slots__ = ("_allocator", "_block_size", "_forked_tail", "_hashes", "_num_promoted", "block_ids")

    def __init__(self, allocator: BlockAllocator, block_size: int):
        self._allocator = allocator
        self._block_size = block_size
        self.block_ids: list[int] = []
        self._hashes: list[bytes] = []
        self._num_promoted = 0
        self._forked_tail = -1

    @property
    def num_slots(self) -> int:
        """Tokens the table has room for."""
        return len(self.block_ids) * self._block_size

    def find_cached(self, token_ids: Sequence[int]) -> list[int]:
        """The blocks that already hold the longest possible prefix of `token_ids`; they are not taken yet.

        The last token is left out: it must be computed, since the next token is drawn from its logits.
        """
        num_full = (len(token_ids) - 1) // self._block_size
        found: list[int] = []
        for index in range(num_full):
            if index == len(self._hashes):
                extend_hashes(self._hashes, token_ids, self._block_size, index + 1)
            block_id = self._allocator.find(self._hashes[index])
            if block_id is None:
                break
            found.append(block_id)
        return found

    def allocate(self, num_tokens: int, shared_ids: Sequence[int] = ()) -> None:
        """Fill the empty table with `shared_ids`, which are shared, and fresh blocks for up to `num_tokens`."""
        for block_id in shared_ids:
            self._allocator.share(block_id)
        self.block_ids = list(shared_ids)
        self._num_promoted = len(shared_ids)
        self._forked_tail = -1
        self._grow(num_tokens)

    def num_blocks_touched_by_append(self, first_slot: int, num_tokens: int) -> int:
        """Free blocks that `append_slots` with the same arguments takes: fresh ones, and one for copy-on-write."""
        fresh = max(cdiv(num_tokens, self._block_size) - len(self.block_ids), 0)
        return fresh + self._must_copy(first_slot)

    def append_slots(self, first_slot: int, num_tokens: int) -> list[BlockPair]:
        """Make the slots `first_slot` .. `num_tokens` - 1 writable; the copy-on-write pairs that this takes.

        A partly filled block that other sequences hold too is replaced by a copy of its own.
        """
        copies = []
        if self._must_copy(first_slot):
            index = first_slot // self._block_size
            shared = self.block_ids[index]
            self.block_ids[index] = self._allocator.allocate()
            self._allocator.release((shared,))
            copies.append((shared, self.block_ids[index]))
        self._grow(num_tokens)
        return copies

    def promote(self, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` have their KV: full blocks among them become immutable and findable."""
        num_full = num_computed_tokens // self._block_size
        if num_full <= self._num_promoted:
            return
        extend_hashes(self._hashes, token_ids, self._block_size, num_full)
        for index in range(self._num_promoted, num_full):
            self._allocator.promote(self.block_ids[index], self._hashes[index])
        self._num_promoted = num_full

    def fork(self) -> "BlockTable":
        """A table for a sequence with the same tokens: all blocks are shared."""
        child = BlockTable(self._allocator, self._block_size)
        child._hashes = self._hashes.copy()
        child.allocate(0, self.block_ids)
        child._num_promoted = self._num_promoted
        self._forked_tail = child._forked_tail = len(self.block_ids) - 1
        return child

    def free(self) -> None:
        """Let go of all blocks, the tail first: the head of a prompt is the part most likely to be asked for again."""
        self._allocator.release(reversed(self.block_ids))
        self.block_ids = []
        self._num_promoted = 0

    def _grow(self, num_tokens: int) -> None:
        for _ in range(cdiv(num_tokens, self._block_size) - len(self.block_ids)):
            self.block_ids.append(self._allocator.allocate())

    def _must_copy(self, first_slot: int) -> bool:
        # Only the block that was partly filled at the last fork is ever written while it is shared: other shared
        # blocks are full, or are filled by one sequence on behalf of all (BlockSpaceManager.allocate).
        index = first_slot // self._block_size
        return index == self._forked_tail and self._allocator.ref_count(self.block_ids[index]) > 1
