"""BlockTable: where the tokens of one sequence stand. Token i is in slot i % block_size of block i // block_size."""

from collections.abc import Sequence

from lullm.kv.allocator import BlockAllocator
from lullm.kv.hashing import ROOT_HASH, extend_hashes
from lullm.types.packed import PackedInts, pack
from lullm.types.step import BlockPair
from lullm.units import cdiv

NULL_BLOCK = -1
"""Stands in a block table where nothing is held: the tokens there have left the sliding window and are never read."""


def num_blocks_behind_window(num_computed_tokens: int, block_size: int, window: int | None) -> int:
    """Leading blocks that no token sees any more once so many are computed; 0 without a window.

    The next token sees `window` tokens, itself included, and those behind it see no earlier ones.
    """
    return 0 if window is None else max(num_computed_tokens - window + 1, 0) // block_size


class BlockTable:
    """The blocks of one sequence, in order. Blocks are taken on demand, so at most the last one is partly filled.

    With a sliding window the blocks that have left it are let go (`drop`), and NULL_BLOCK keeps their place.

    All blocks of a table are of one pool, `allocator`'s; `move` takes them to the other. The chained hashes of the
    sequence's full blocks are kept here too, and survive `free`: a preempted or waiting sequence is looked up again
    and again, and hashing a prompt of 10,000 tokens anew costs a millisecond.
    """

    __slots__ = (
        "_block_size", "_duplicates", "_forked_tail", "_hashes", "_num_dropped", "_num_promoted", "_packed_ids",
        "_root", "allocator", "block_ids",
    )  # fmt: skip

    def __init__(self, allocator: BlockAllocator, block_size: int, root: bytes = ROOT_HASH):
        self.allocator = allocator
        self.block_ids: list[int] = []
        self._block_size = block_size
        self._root = root
        self._hashes: list[bytes] = []
        self._num_dropped = 0
        self._num_promoted = 0
        self._forked_tail = -1
        self._packed_ids: PackedInts | None = None
        self._duplicates: list[int] = []  # indices of full blocks whose content another block had first

    @property
    def num_slots(self) -> int:
        """Tokens the table has room for."""
        return len(self.block_ids) * self._block_size

    @property
    def packed_ids(self) -> PackedInts:
        """The blocks as they stand now. The same bytes until one changes, which is every `block_size` tokens."""
        if self._packed_ids is None:
            self._packed_ids = pack(self.block_ids)
        return self._packed_ids

    @property
    def held_ids(self) -> list[int]:
        """The blocks that the table holds a share of: all but those that have left the window."""
        return [block_id for block_id in self.block_ids if block_id != NULL_BLOCK]

    def find_cached(
        self, token_ids: Sequence[int], pools: Sequence[BlockAllocator], window: int | None = None
    ) -> tuple[int, list[tuple[BlockAllocator, int]]]:
        """The longest prefix of `token_ids` that need not be computed, because the pools have its full blocks.

        Returns:
            How many leading blocks are not needed since they are behind the window of all tokens to come, cached or
            not; then (pool, block id) of those that are. Of several pools the first that has a block gives it. The
            blocks are not taken yet. The last token is left out: it must be computed, since the next token is drawn
            from its logits.
        """
        hits: list[tuple[BlockAllocator, int] | None] = []
        first = end = run_start = 0  # the best so far: blocks first..end - 1; since `run_start` all were found
        for index in range((len(token_ids) - 1) // self._block_size):
            if index == len(self._hashes):
                extend_hashes(self._hashes, token_ids, self._block_size, index + 1, self._root)
            hit = self._find(self._hashes[index], pools)
            hits.append(hit)
            if hit is None:
                if window is None:
                    break
                run_start = index + 1
                continue
            behind = num_blocks_behind_window((index + 1) * self._block_size, self._block_size, window)
            if run_start <= behind:
                first, end = behind, index + 1
        return first, [hit for hit in hits[first:end] if hit is not None]

    @staticmethod
    def _find(block_hash: bytes, pools: Sequence[BlockAllocator]) -> tuple[BlockAllocator, int] | None:
        for pool in pools:
            block_id = pool.find(block_hash)
            if block_id is not None:
                return pool, block_id
        return None

    def hash_of(self, index: int) -> bytes:
        """The content hash of a full block that `find_cached` or `promote` has met."""
        return self._hashes[index]

    def allocate(self, num_tokens: int, shared_ids: Sequence[int] = (), num_promoted: int | None = None) -> None:
        """Fill the empty table with `shared_ids` and fresh blocks for up to `num_tokens` tokens.

        The caller has taken a share of each of `shared_ids` (but NULL_BLOCK) for this table; `num_promoted` of them
        (None: all) are immutable already.
        """
        self.block_ids = list(shared_ids)
        self._packed_ids = None
        self._num_dropped = 0
        self._num_promoted = len(shared_ids) if num_promoted is None else num_promoted
        self._forked_tail = -1
        self._duplicates = []
        self._grow(num_tokens)

    def num_fresh_blocks(self, num_tokens: int) -> int:
        """Free blocks that growing to `num_tokens` tokens takes."""
        return max(cdiv(num_tokens, self._block_size) - len(self.block_ids), 0)

    def block_to_copy(self, first_slot: int) -> int | None:
        """The shared block that must be copied before `first_slot` is written; None if there is none."""
        # Only the block that was partly filled at the last fork is ever written while it is shared: other shared
        # blocks are full, or are filled by one sequence on behalf of all (BlockSpaceManager.allocate).
        index = first_slot // self._block_size
        if index != self._forked_tail or self.allocator.ref_count(self.block_ids[index]) == 1:
            return None
        return self.block_ids[index]

    def num_blocks_touched_by_append(self, first_slot: int, num_tokens: int) -> int:
        """Free blocks that `append_slots` with the same arguments takes: fresh ones, and one for copy-on-write."""
        return self.num_fresh_blocks(num_tokens) + (self.block_to_copy(first_slot) is not None)

    def append_slots(self, first_slot: int, num_tokens: int) -> list[BlockPair]:
        """Make the slots `first_slot` .. `num_tokens` - 1 writable; the copy-on-write pairs that this takes.

        A partly filled block that other sequences hold too is replaced by a copy of its own.
        """
        if self._duplicates:
            self._merge_duplicates()
        copies = []
        shared = self.block_to_copy(first_slot)
        if shared is not None:
            index = first_slot // self._block_size
            self.block_ids[index] = self.allocator.allocate()
            self._packed_ids = None
            self.allocator.release((shared,))
            copies.append((shared, self.block_ids[index]))
        self._grow(num_tokens)
        return copies

    def promote(self, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` have their KV: full blocks among them become immutable and findable."""
        num_full = num_computed_tokens // self._block_size
        if num_full <= self._num_promoted:
            return
        extend_hashes(self._hashes, token_ids, self._block_size, num_full, self._root)
        for index in range(self._num_promoted, num_full):
            if not self.allocator.promote(self.block_ids[index], self._hashes[index]):
                self._duplicates.append(index)
        self._num_promoted = num_full

    def drop(self, num_blocks: int) -> None:
        """Let go of the first `num_blocks` blocks; their content stays findable until they are needed."""
        if num_blocks > self._num_dropped:
            leaving = slice(self._num_dropped, num_blocks)
            self.allocator.release([b for b in self.block_ids[leaving] if b != NULL_BLOCK])
            self.block_ids[leaving] = [NULL_BLOCK] * (num_blocks - self._num_dropped)
            self._packed_ids = None
            self._num_dropped = num_blocks

    def borrow(self, other: "BlockTable", first: int, end: int) -> None:
        """Share those of `other`'s blocks `first`..`end` - 1 that this table has only a place for."""
        for index in range(first, end):
            if self.block_ids[index] == NULL_BLOCK:
                self.allocator.share(other.block_ids[index])
                self.block_ids[index] = other.block_ids[index]
                self._packed_ids = None

    def fork(self) -> "BlockTable":
        """A table for a sequence with the same tokens: all blocks are shared."""
        child = BlockTable(self.allocator, self._block_size, self._root)
        child._hashes = self._hashes.copy()
        for block_id in self.held_ids:
            self.allocator.share(block_id)
        child.allocate(0, self.block_ids, self._num_promoted)
        child._num_dropped = self._num_dropped
        self._forked_tail = child._forked_tail = len(self.block_ids) - 1
        return child

    def move(self, pool: BlockAllocator, block_ids: list[int]) -> list[int]:
        """The table stands in other blocks, of another pool, from now on; the held ones, for the caller to release.

        The contents are moved by the step that is being planned; which blocks are shared does not change.
        """
        held = self.held_ids
        self.block_ids, self.allocator, self._packed_ids = block_ids, pool, None
        return held

    def free(self) -> None:
        """Let go of all blocks, the tail first: the head of a prompt is the part most likely to be asked for again."""
        self.allocator.release(reversed(self.held_ids))
        self.block_ids = []
        self._packed_ids = None
        self._num_dropped = 0
        self._num_promoted = 0
        self._duplicates = []

    def _merge_duplicates(self) -> None:
        """Take the block that had the content first instead of an own one with the same content.

        One plan later than the promotion: in the step of the promotion the own block is still being written, and
        writing into a block that others read could change its low bits under them.
        """
        for index in self._duplicates:
            if index < self._num_dropped:
                continue
            first = self.allocator.find(self._hashes[index])
            # A block that other sequences hold too would not become free, so taking another one could cost a block.
            if first is not None and self.allocator.ref_count(self.block_ids[index]) == 1:
                self.allocator.share(first)
                self.allocator.release((self.block_ids[index],))
                self.block_ids[index] = first
                self._packed_ids = None
        self._duplicates = []

    def _grow(self, num_tokens: int) -> None:
        for _ in range(cdiv(num_tokens, self._block_size) - len(self.block_ids)):
            self.block_ids.append(self.allocator.allocate())
            self._packed_ids = None
