"""BlockSpaceManager: the KV blocks of sequence groups, from admission through growth, sharing and swaps to release."""

import itertools
from collections.abc import Collection
from collections.abc import Sequence as Seq

from lullm.kv.admission import AllocStatus, BlockAdmission
from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.kv.cache_group import ONE_GROUP, CacheGroup
from lullm.kv.duplicate import Duplicate
from lullm.kv.growth import Growth
from lullm.kv.image.block_images import BlockImages
from lullm.kv.pool_pair import PoolPair
from lullm.kv.snapshot import BlockOwner, Holding, MemorySnapshot, take_pool_snapshot
from lullm.kv.state.snapshots import StateSnapshots
from lullm.kv.vision.ledger import TileLedger
from lullm.types.packed import PackedInts
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.types.sleep import UsedBlocks
from lullm.types.step import BlockPair

Slots = tuple[tuple[PackedInts, ...], tuple[BlockPair, ...]]
"""A sequence's blocks in order, by cache group; and (source, destination) pairs to copy before a step writes them."""


class BlockSpaceManager:
    """The block tables of the sequences, over two pools of blocks of `block_size` tokens: device and host (`PoolPair`).

    A sequence has a table in each cache group of the model, and a block belongs to one group at a time. The blocks of a
    sequence are all on the device, or all on the host while it is swapped out. `watermark` is the share of the device
    pool that admission leaves free, so that running sequences can grow before the first preemption.

    In a group with full attention a sequence gets blocks for all its tokens at admission. In a group with a sliding
    window it holds only the blocks inside the window. It gets them step by step, for as many tokens as are planned
    (`num_appendable` counts how many fit), and `slide` frees blocks that have left the window after every step. So
    where all groups have windows, a prompt may be longer than the whole pool.

    Every method only plans: the step that is being planned copies, moves and writes the blocks.

    Some methods are those of its parts, bound once, since a forwarding call costs time at every step and sequence. See
    `BlockAdmission` for `num_required_blocks`, `can_allocate`, `allocate` and `share_prompt`; `Growth` for `has_slots`,
    `can_append_slots`, `num_appendable` and `num_guess_slots`; `StateSnapshots.num_until_next` for
    `num_until_snapshot`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        watermark: float = 0.01,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        groups: Seq[CacheGroup] = ONE_GROUP,
    ) -> None:
        self.block_size = block_size
        self.groups = tuple(groups)
        self._windowed = [(i, cache) for i, cache in enumerate(groups) if cache.window is not None]
        self.has_windows = bool(self._windowed)
        self.has_states = not all(cache.keeps_tokens for cache in groups)
        self._state_snapshots = StateSnapshots(block_size, self.groups, enable_prefix_caching)
        self.num_until_snapshot = self._state_snapshots.num_until_next
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self._pools = PoolPair(num_blocks, num_host_blocks, enable_prefix_caching)
        self._device, self._host = self._pools.device, self._pools.host
        self.next_free = self._device.next_free
        self._tables: dict[int, tuple[BlockTable, ...]] = {}
        self._duplicates: list[Duplicate] = []
        self.tiles = TileLedger()
        growth = Growth(block_size, self.groups, self._device, self._tables)
        self.has_slots, self.can_append_slots = growth.has_slots, growth.can_append_slots
        self.num_appendable, self.num_guess_slots = growth.num_appendable, growth.num_guess_slots
        self._num_touched = growth.num_touched
        num_reserved = int(watermark * num_blocks)
        self._admission = admission = BlockAdmission(
            block_size, self.groups, self._pools, self._tables, growth, num_reserved, enable_prefix_caching
        )
        self.num_required_blocks, self.can_allocate = admission.num_required_blocks, admission.can_allocate
        self.allocate, self.share_prompt = admission.allocate, admission.share_prompt
        self.prefix_cache = admission.prefix_cache
        self._images = BlockImages(self._pools, self._tables, admission)

    @property
    def num_used_blocks(self) -> int:
        """Device blocks that sequences hold; blocks that are only cached count as free."""
        return self.num_blocks - self._device.num_free

    @property
    def num_used_host_blocks(self) -> int:
        """Host blocks that sequences hold."""
        return self.num_host_blocks - self._host.num_free

    # -- growth --------------------------------------------------------------------------------------------------

    def append_slots(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> Slots:
        """Make the slots of the next `num_tokens` tokens writable, and count them as computed, guesses included."""
        start, tables = seq.num_computed_tokens, self._tables[seq.seq_id]
        end = seq.num_computed_tokens = start + num_tokens
        block_ids: tuple[PackedInts, ...] = ()
        copies: tuple[BlockPair, ...] = ()
        if self.has_states:
            self._state_snapshots.pass_by(group, seq, tables)
        for table in tables:
            copies += table.append_slots(start, end)
            block_ids += (table.packed_ids,)
        # All tables of a sequence are promoted together. Most tokens fill no block.
        if self.enable_prefix_caching and end // self.block_size > tables[0].num_promoted:
            self.promote(group, seq)
        return block_ids, copies

    def slide(self, seq: Sequence) -> None:
        """Free the blocks that have left a window. After the step that computed the tokens, since it reads them."""
        if self.has_windows:
            tables, num_computed = self._tables[seq.seq_id], seq.num_computed_tokens
            for index, cache in self._windowed:
                tables[index].drop(cache.num_blocks_behind(num_computed, self.block_size))

    def promote(self, group: SequenceGroup, seq: Sequence) -> None:
        """Make the blocks that are full of computed and known tokens immutable, and findable by their content."""
        num_tokens = min(seq.num_computed_tokens, seq.num_known_tokens)
        for number, table in enumerate(self._tables[seq.seq_id] if self.enable_prefix_caching else ()):
            for index in table.promote(seq.token_ids, num_tokens):
                block_id, content = table.block_ids[index], table.content(index)
                self._duplicates.append(Duplicate(group, number, index, block_id, content))

    def merge_duplicates(self) -> None:
        """Replace each duplicate block by the first one with its content. Before a plan, which can use the freed
        blocks.

        Also makes the states of earlier steps findable.
        """
        for duplicate in self._duplicates:
            duplicate.merge(self._tables)
        self._duplicates.clear()
        self._state_snapshots.keep_all(self._tables, self._device)

    def shrink(self, seq: Sequence) -> None:
        """Free the blocks after the computed tokens, which wrong guesses had taken."""
        for table in self._tables[seq.seq_id]:
            table.shrink(seq.num_computed_tokens)

    def num_drafted_blocks(self, seq: Sequence, cache: int) -> int:
        """The sequence's first blocks in a cache group that the draft model has filled, for it or for another one."""
        table = self._tables[seq.seq_id][cache]
        is_drafted = table.allocator.is_drafted
        return next((i for i, block_id in enumerate(table.block_ids) if not is_drafted[block_id]), len(table.block_ids))

    def mark_drafted(self, seq: Sequence, cache: int, first: int, end: int) -> None:
        """The draft model fills blocks `first`..`end` - 1 of the sequence, by the step that is being planned."""
        table = self._tables[seq.seq_id][cache]
        for block_id in table.block_ids[first:end]:
            table.allocator.is_drafted[block_id] = 1

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let the child, which has the parent's tokens so far, share all of the parent's blocks."""
        tables = self._tables[parent.seq_id]
        hashes = tables[0].hashes.copy()
        self._tables[child.seq_id] = tuple(table.fork(hashes) for table in tables)

    # -- swapping ------------------------------------------------------------------------------------------------

    def num_held_blocks(self, group: SequenceGroup) -> int:
        """Distinct blocks that the group's unfinished sequences hold, in either pool."""
        return len({block_id for table in self._tables_in(group) for block_id in table.held_ids})

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the host pool has room for the group."""
        return self.num_held_blocks(group) <= self._host.num_free

    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group to the host pool. Returns (device, host) pairs; a block of several sequences moves once."""
        return self._pools.swap_out(self._tables_in(group))

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Whether the device pool has room for the group and its next tokens, watermark included."""
        required = self.num_held_blocks(group) + self._num_touched(group.unfinished)
        return self._admission.fits(required)

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group back to the device pool. Returns the (host, device) pairs of blocks that the device lacks."""
        return self._pools.swap_in(self._tables_in(group))

    def take_cache_moves(self) -> tuple[list[BlockPair], list[BlockPair]]:
        """Moves of cached content for the plan that is being made: (swap out, swap in). Call once, at its end."""
        return self._pools.take_cache_moves()

    # -- release -------------------------------------------------------------------------------------------------

    def release(self, seq: Sequence) -> None:
        """Free the blocks of a preempted sequence; its hashes stay for its return."""
        for table in self._tables[seq.seq_id]:
            table.free()
            table.allocator = self._device
        seq.num_computed_tokens = 0

    def free(self, seq: Sequence) -> None:
        """Free the blocks of a finished sequence and forget it. Idempotent."""
        for table in self._tables.pop(seq.seq_id, ()):
            table.free()

    def block_ids(self, seq: Sequence) -> "tuple[memoryview[int], ...]":
        """The sequence's blocks in order, by cache group; NULL_BLOCK where they left the window."""
        return tuple([table.block_ids for table in self._tables[seq.seq_id]])

    def reset_prefix_cache(self, salt: bytes | None = None) -> None:
        """Forget all cached contents, in both pools; blocks in use stay with their sequences.

        With a new `salt` (a weight version) later requests find no block that was computed before.
        """
        self._pools.reset_cache()
        self.tiles.forget()
        self._duplicates.clear()
        self._state_snapshots.forget()
        if salt is not None:
            self._admission.change_salt(salt)

    def used_blocks(self, with_cached: bool = False) -> UsedBlocks:
        """The blocks that sequences hold, in both pools. `with_cached`: also free blocks that can be found."""
        return self._pools.used_blocks(with_cached)

    def cached_ids(self) -> tuple[Collection[int], Collection[int]]:
        """The blocks that can be found, in use or free: (device, host). Valid until the next call."""
        return self._pools.cached_ids()

    def forget_cached(self) -> None:
        """Forget the contents of free blocks, in both pools; blocks in use can still be found."""
        self._pools.forget_cached()

    @property
    def images(self) -> BlockImages:
        """The blocks as plain data, once duplicates are merged. Between two plans."""
        self.merge_duplicates()
        return self._images

    def snapshot(self, groups: Seq[SequenceGroup]) -> MemorySnapshot:
        """Every block of both pools, between two plans; `groups` are those that are running or swapped out."""
        holdings: dict[BlockAllocator, list[Holding]] = {self._device: [], self._host: []}
        for group in groups:
            for seq in group.unfinished:
                owner = BlockOwner(group.request_id, seq.seq_id)
                for cache, table in zip(self.groups, self._tables[seq.seq_id], strict=True):
                    num_tokens = seq.num_computed_tokens if cache.keeps_tokens else 0
                    holdings[table.allocator].append(Holding(owner, table.block_ids, num_tokens))
        device, host = (take_pool_snapshot(pool, self.block_size, held) for pool, held in holdings.items())
        return MemorySnapshot(self.block_size, device, host)

    def check_conservation(self) -> None:
        """See `PoolPair.check_conservation`. For tests and idle engines, between plans."""
        self._pools.check_conservation(list(itertools.chain.from_iterable(self._tables.values())))

    def _tables_in(self, group: SequenceGroup) -> list[BlockTable]:
        return [table for seq in group.unfinished for table in self._tables[seq.seq_id]]
