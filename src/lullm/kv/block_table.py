"""BlockTable: the blocks of one sequence. Token i is in slot i % block_size of block i // block_size."""

from collections.abc import Iterable, Sequence

from lullm.kv.allocator import BlockAllocator
from lullm.kv.hashing import BlockHashes, group_suffix
from lullm.kv.image.image import TableImage
from lullm.types.packed import INT_BYTES, PackedInts, pack, view
from lullm.types.step import BlockPair
from lullm.units import cdiv

NULL_BLOCK = -1
"""A block table's entry for a block that has left the sliding window; no later step reads its tokens."""


class BlockTable:
    """The blocks that one sequence has in one cache group, in order. They are allocated on demand.

    With a sliding window, `drop` frees the blocks that have left it and puts NULL_BLOCK in their place.

    The ids stand in `packed_ids`, as plans send them at every step: it is replaced when a block changes.

    All blocks of a table belong to one pool, that of `allocator`; `move` exchanges them for blocks of the other. All
    tables of a sequence share one object `hashes`.
    """

    num_to_copy = 1
    """Blocks to copy when `block_to_copy` returns one."""

    __slots__ = (
        "_block_size", "_forked_tail", "_group", "_num_dropped", "_suffix", "allocator", "hashes", "num_promoted",
        "packed_ids",
    )  # fmt: skip

    def __init__(self, allocator: BlockAllocator, hashes: BlockHashes, group: int = 0):
        self.allocator = allocator
        self.hashes = hashes
        self.packed_ids: PackedInts = b""
        self._block_size = hashes.block_size
        self._group = group
        self._suffix = group_suffix(group)
        self._num_dropped = 0
        self.num_promoted = 0
        self._forked_tail = -1

    @property
    def block_ids(self) -> "memoryview[int]":
        """The blocks in order; NULL_BLOCK where they left the window."""
        return view(self.packed_ids)

    @property
    def held_ids(self) -> list[int]:
        """The blocks that the table holds, without those that have left the window."""
        return [block_id for block_id in self.block_ids if block_id != NULL_BLOCK]

    def content(self, index: int) -> bytes:
        """The hash of the full block with this index; `hashes` must cover it."""
        return self.hashes[index] + self._suffix

    def contents(self, first: int, end: int) -> list[bytes]:
        """The hashes of the table's blocks number `first`..`end` - 1 in a cached prefix of `end` blocks."""
        return [self.content(index) for index in range(first, end)]

    def allocate(self, num_tokens: int, shared_ids: Iterable[int] = (), num_promoted: int | None = None) -> None:
        """Fill the empty table with `shared_ids` and fresh blocks for up to `num_tokens` tokens.

        The caller has taken a reference to each of `shared_ids` except NULL_BLOCK for this table; `num_promoted` of
        them (None: all) are immutable already.
        """
        self.packed_ids = pack(shared_ids)
        self._num_dropped = 0
        self.num_promoted = len(self.block_ids) if num_promoted is None else num_promoted
        self._forked_tail = -1
        self._grow(num_tokens)

    def num_fresh_blocks(self, num_tokens: int) -> int:
        """Free blocks that growing to `num_tokens` tokens takes."""
        return max(cdiv(num_tokens, self._block_size) - len(self.block_ids), 0)

    def block_to_copy(self, first_slot: int) -> int | None:
        """The shared block that must be copied before `first_slot` is written; None if there is none."""
        # A shared block is written only if it was partly filled at the last fork. Other shared blocks are full, or one
        # sequence fills them for all (BlockSpaceManager.allocate).
        index = first_slot // self._block_size
        if index != self._forked_tail or self.allocator.ref_count(self.block_ids[index]) == 1:
            return None
        return self.block_ids[index]

    def append_slots(self, first_slot: int, num_tokens: int) -> tuple[BlockPair, ...]:
        """Make the slots `first_slot` .. `num_tokens` - 1 writable. Returns the copy-on-write pairs for that.

        A partly filled block that other sequences also hold is replaced by a copy.
        """
        shared = self.block_to_copy(first_slot) if first_slot // self._block_size == self._forked_tail else None
        if num_tokens * INT_BYTES > len(self.packed_ids) * self._block_size:
            self._grow(num_tokens)
        if shared is None:
            return ()
        own = self.allocator.allocate()
        self._put(self._forked_tail, [own])
        self.allocator.release((shared,))
        return ((shared, own),)

    def promote(self, token_ids: Sequence[int], num_computed_tokens: int) -> list[int]:
        """Make full blocks among the first `num_computed_tokens` tokens immutable and findable.

        Returns the indices of blocks that duplicate another block's content.
        """
        num_full = num_computed_tokens // self._block_size
        self.hashes.extend(token_ids, num_full)
        promote, own = self.allocator.promote, range(self.num_promoted, num_full)
        self.num_promoted = max(num_full, self.num_promoted)
        return [index for index in own if not promote(self.block_ids[index], self.content(index))]

    def has(self, index: int, block_id: int) -> bool:
        """Whether the table holds the block at this index."""
        return index < len(self.block_ids) and self.block_ids[index] == block_id

    def exchange(self, index: int, block_id: int) -> None:
        """Replace the block at this index by `block_id`, which has the same content and becomes shared."""
        self.allocator.share(block_id)
        self.allocator.release((self.block_ids[index],))
        self._put(index, [block_id])

    def drop(self, num_blocks: int) -> None:
        """Free the first `num_blocks` blocks; their content can be found until they are reused."""
        if num_blocks > self._num_dropped:
            leaving = self.block_ids[self._num_dropped : num_blocks]
            self.allocator.release([b for b in leaving if b != NULL_BLOCK])
            self._put(self._num_dropped, [NULL_BLOCK] * len(leaving))
            self._num_dropped = num_blocks

    def shrink(self, num_tokens: int) -> None:
        """Free the blocks that have no token when the table holds `num_tokens` tokens."""
        num_blocks = cdiv(num_tokens, self._block_size)
        if num_blocks < len(self.block_ids):
            self.allocator.release(reversed(self.block_ids[num_blocks:]))
            self.packed_ids = self.packed_ids[: num_blocks * INT_BYTES]

    def borrow(self, other: "BlockTable", first: int, end: int) -> None:
        """Share blocks `first`..`end` - 1 of `other`, where this table has NULL_BLOCK."""
        block_ids = self.block_ids[first:end].tolist()
        for index, (own, theirs) in enumerate(zip(block_ids, other.block_ids[first:end], strict=True)):
            if own == NULL_BLOCK:
                self.allocator.share(theirs)
                block_ids[index] = theirs
        self._put(first, block_ids)

    def fork(self, hashes: BlockHashes) -> "BlockTable":
        """A table with its own `hashes` for a sequence with the same tokens; it shares all blocks."""
        child = BlockTable(self.allocator, hashes, self._group)
        for block_id in self.held_ids:
            self.allocator.share(block_id)
        child.allocate(0, self.block_ids, self.num_promoted)
        child._num_dropped = self._num_dropped
        self._forked_tail = child._forked_tail = len(self.block_ids) - 1
        return child

    def move(self, pool: BlockAllocator, block_ids: Iterable[int]) -> list[int]:
        """Replace the blocks by others of another pool. Returns the old ones, which the caller must release.

        The step that is being planned moves the contents. The same sequences share the blocks afterwards.
        """
        held = self.held_ids
        self.packed_ids, self.allocator = pack(block_ids), pool
        return held

    def image(self, is_on_host: bool) -> TableImage:
        """The table as plain data. `is_on_host`: which pool is its own."""
        return TableImage(self.block_ids.tolist(), is_on_host, self._num_dropped, self.num_promoted, self._forked_tail)

    def restore(
        self, image: TableImage, pool: BlockAllocator, block_ids: Iterable[int], token_ids: Sequence[int]
    ) -> None:
        """Fill the empty table with the counters of an image and these blocks, to which the caller has references."""
        self.packed_ids, self.allocator = pack(block_ids), pool
        self._num_dropped, self.num_promoted, self._forked_tail = (
            image.num_dropped, image.num_promoted, image.forked_tail,
        )  # fmt: skip
        self.hashes.extend(token_ids, image.num_promoted)

    def free(self) -> None:
        """Free all blocks, the last one first: a prompt's beginning is the part most likely to be found again."""
        self.allocator.release(reversed(self.held_ids))
        self.packed_ids = b""
        self._num_dropped = 0
        self.num_promoted = 0

    def _grow(self, num_tokens: int) -> None:
        allocate = self.allocator.allocate
        self.packed_ids += pack(allocate() for _ in range(self.num_fresh_blocks(num_tokens)))

    def _put(self, index: int, block_ids: Sequence[int]) -> None:
        """Replace the blocks from `index` on by these."""
        start, end = index * INT_BYTES, (index + len(block_ids)) * INT_BYTES
        self.packed_ids = self.packed_ids[:start] + pack(block_ids) + self.packed_ids[end:]
