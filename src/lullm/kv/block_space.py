"""BlockSpaceManager: admission, growth, sharing, swapping and release of the KV blocks of sequence groups."""

import enum
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import NULL_BLOCK, BlockTable, num_blocks_behind_window
from lullm.kv.hashing import salted_root
from lullm.kv.layout import num_window_blocks
from lullm.kv.pool_pair import PoolPair
from lullm.kv.snapshot import BlockOwner, Holding, MemorySnapshot, take_pool_snapshot
from lullm.types.packed import PackedInts
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.types.sleep import UsedBlocks
from lullm.types.step import BlockPair
from lullm.units import cdiv


class AllocStatus(enum.Enum):
    """OK: the group can be allocated now; LATER: when others have freed blocks; NEVER: it is larger than the pool."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


@dataclass(slots=True)
class PrefixCacheStats:
    """Counted in tokens at each admission: looked up, found on the device, found in the host pool."""

    queries: int = 0
    hits: int = 0
    host_hits: int = 0


class BlockSpaceManager:
    """The block tables of the sequences, over two pools of blocks of `block_size` tokens: device and host (`PoolPair`).

    A sequence's blocks are all on the device, or all on the host while its group is swapped out. `watermark` is the
    share of the device pool that admission leaves free, so that running sequences can grow before the first
    preemption.

    With a sliding `window` (tokens that a token sees, itself included) a sequence holds the blocks inside its window
    only. It gets blocks step by step, for as many tokens as are planned (`num_appendable` says what there is room
    for), and `slide` frees those that have left the window after every step. So a prompt may be longer than the whole
    pool, as long as the window fits.

    Every method only plans: blocks are copied, moved and written by the step whose plan is being made.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        watermark: float = 0.01,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        salt: bytes = b"",
        window: int | None = None,
    ) -> None:
        self.block_size = block_size
        self.window = window
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.enable_prefix_caching = enable_prefix_caching
        self.prefix_cache = PrefixCacheStats()
        self._root = salted_root(salt)
        self._watermark_blocks = int(watermark * num_blocks)
        self._pools = PoolPair(num_blocks, num_host_blocks, enable_prefix_caching)
        self._device, self._host = self._pools.device, self._pools.host
        self._tables: dict[int, BlockTable] = {}

    @property
    def num_used_blocks(self) -> int:
        """Device blocks that sequences hold; what is only cached counts as free."""
        return self.num_blocks - self._device.num_free

    @property
    def num_used_host_blocks(self) -> int:
        """The same of the host pool."""
        return self.num_host_blocks - self._host.num_free

    # -- admission -----------------------------------------------------------------------------------------------

    def num_required_blocks(self, group: SequenceGroup) -> int:
        """Blocks the whole group takes when nothing of it is cached.

        Sequences of one group share the full blocks of their prompt; those still to be forked copy the partly filled
        block at their first token and so take one block each. With a window a sequence takes what lets it go on
        token by token; larger chunks use what is free beyond that.
        """
        leader, *others = group.unfinished
        shared = leader.prompt_len // self.block_size
        counts = [cdiv(len(leader), self.block_size)] + [cdiv(len(seq), self.block_size) - shared for seq in others]
        if self.window is not None:
            most = num_window_blocks(self.window, self.block_size)
            counts = [min(count, most) for count in counts]
        return sum(counts) + group.num_unborn

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Whether `allocate(group)` fits, watermark included. The watermark does not bind while the pool is idle."""
        required = self.num_required_blocks(group)
        if required > self.num_blocks:
            return AllocStatus.NEVER
        # Cached blocks that somebody uses cost nothing; cached blocks in the free queue leave it like any other.
        _, cached = self._find_cached(group)
        in_use = sum(pool is self._device and pool.ref_count(block_id) > 0 for pool, block_id in cached)
        return self._fits(required - in_use)

    def allocate(self, group: SequenceGroup) -> int:
        """Give every unfinished sequence of the group blocks for all its tokens, and set its computed tokens.

        Returns:
            The number of the leader's tokens whose KV was found in the prefix cache. The other sequences start
            behind the full blocks of the prompt, which they share with the leader; they must not be computed before
            the leader has got there. With a window they have but the places of those blocks until `share_prompt`.
        """
        leader, *others = group.unfinished
        table = self._table(leader)
        num_skipped, found = self._find_cached(group)
        for pool, block_id in found:  # all are held before the first fresh block can evict one of them
            pool.share(block_id)
        cached = [
            block_id if pool is self._device else self._pools.restore(block_id, table.hash_of(index))
            for index, (pool, block_id) in enumerate(found, num_skipped)
        ]
        leader.num_computed_tokens = (num_skipped + len(cached)) * self.block_size
        table.allocate(self._num_admitted(leader), [NULL_BLOCK] * num_skipped + cached)
        self.prefix_cache.queries += len(leader)
        self.prefix_cache.hits += leader.num_computed_tokens
        self.prefix_cache.host_hits += sum(pool is self._host for pool, _ in found) * self.block_size
        num_shared = leader.prompt_len // self.block_size
        for seq in others:
            seq.num_computed_tokens = num_shared * self.block_size
            self._table(seq).allocate(self._num_admitted(seq), [NULL_BLOCK] * num_shared)
            if self.window is None:
                self._tables[seq.seq_id].borrow(table, 0, num_shared)
        return leader.num_computed_tokens

    def share_prompt(self, leader: Sequence, seq: Sequence) -> None:
        """The leader's next step reaches the end of the prompt's full blocks: `seq`, if it waits there, shares them.

        Only with a window, where those blocks did not exist when the group was admitted. Idempotent.
        """
        num_shared = leader.prompt_len // self.block_size
        if self.window is not None and seq.num_computed_tokens == num_shared * self.block_size:
            first = num_blocks_behind_window(seq.num_computed_tokens, self.block_size, self.window)
            self._tables[seq.seq_id].borrow(self._tables[leader.seq_id], first, num_shared)

    # -- growth --------------------------------------------------------------------------------------------------

    def can_append_slots(self, seqs: Seq[Sequence], num_lookahead_slots: int = 0, num_tokens: int = 1) -> bool:
        """Whether slots for the next `num_tokens` tokens of each, or as many as it has, fit for all together."""
        # Most often there is room whatever each of them needs; counting exactly is a sixth of a scheduler's step.
        most = len(seqs) * (cdiv(num_tokens + num_lookahead_slots - 1, self.block_size) + 1)
        num_free = self._device.num_free
        return most <= num_free or self._num_touched(seqs, num_lookahead_slots, num_tokens) <= num_free

    def num_appendable(self, seq: Sequence) -> int:
        """Tokens, behind the computed ones, that there are slots for in the sequence's blocks and the free ones."""
        if self.window is None:  # all slots are taken before a group is planned
            return seq.num_uncomputed_tokens
        table = self._tables[seq.seq_id]
        num_free = self._device.num_free - (table.block_to_copy(seq.num_computed_tokens) is not None)
        return table.num_slots + num_free * self.block_size - seq.num_computed_tokens

    def append_slots(
        self, seq: Sequence, num_lookahead_slots: int = 0, num_tokens: int | None = None
    ) -> list[BlockPair]:
        """Make the slots of the next `num_tokens` uncomputed tokens (None: of all) and of the lookahead writable.

        Returns the copy-on-write pairs (source, destination) that must be copied before.
        """
        end = len(seq) if num_tokens is None else seq.num_computed_tokens + num_tokens
        return self._tables[seq.seq_id].append_slots(seq.num_computed_tokens, end + num_lookahead_slots)

    def slide(self, seq: Sequence) -> None:
        """Let go of the blocks that have left the window; after the step that computed the tokens, for it read them."""
        if self.window is not None:
            num_behind = num_blocks_behind_window(seq.num_computed_tokens, self.block_size, self.window)
            self._tables[seq.seq_id].drop(num_behind)

    def promote(self, seq: Sequence) -> None:
        """Blocks of `seq` that its computed tokens fill become immutable, and findable by their content."""
        if self.enable_prefix_caching:
            self._tables[seq.seq_id].promote(seq.token_ids, seq.num_computed_tokens)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """The child has the parent's tokens so far: it shares all of its blocks."""
        self._tables[child.seq_id] = self._tables[parent.seq_id].fork()

    # -- swapping ------------------------------------------------------------------------------------------------

    def num_held_blocks(self, group: SequenceGroup) -> int:
        """Distinct blocks that the group's unfinished sequences hold, in whichever pool they are."""
        return len({block_id for seq in group.unfinished for block_id in self._tables[seq.seq_id].held_ids})

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Whether the host pool has room for the group."""
        return self.num_held_blocks(group) <= self._host.num_free

    def swap_out(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group to the host pool; the (device, host) pairs. A block that several sequences hold moves once."""
        return self._pools.swap_out([self._tables[seq.seq_id] for seq in group.unfinished])

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Whether the device pool has room for the group and its next tokens, watermark included."""
        required = self.num_held_blocks(group) + self._num_touched(group.unfinished)
        if required > self.num_blocks:
            return AllocStatus.NEVER
        return self._fits(required)

    def swap_in(self, group: SequenceGroup) -> list[BlockPair]:
        """Move the group back to the device pool; the (host, device) pairs. What the device still has is not moved."""
        return self._pools.swap_in([self._tables[seq.seq_id] for seq in group.unfinished])

    def take_cache_moves(self) -> tuple[list[BlockPair], list[BlockPair]]:
        """Moves of cached content that belong to the plan being made: (swap out, swap in). Call once, at its end."""
        return self._pools.take_cache_moves()

    # -- release -------------------------------------------------------------------------------------------------

    def release(self, seq: Sequence) -> None:
        """Let go of the blocks of a preempted sequence; what is known of their content stays for its return."""
        table = self._tables[seq.seq_id]
        table.free()
        table.allocator = self._device
        seq.num_computed_tokens = 0

    def free(self, seq: Sequence) -> None:
        """Let go of the blocks of a finished sequence and forget it. Idempotent."""
        table = self._tables.pop(seq.seq_id, None)
        if table is not None:
            table.free()

    def block_ids(self, seq: Sequence) -> list[int]:
        """The physical blocks of a sequence in order, NULL_BLOCK for what has left the window; not to be changed."""
        return self._tables[seq.seq_id].block_ids

    def packed_block_ids(self, seq: Sequence) -> tuple[PackedInts, ...]:
        """The same for a plan, by KV cache group."""
        return (self._tables[seq.seq_id].packed_ids,)

    def reset_prefix_cache(self, salt: bytes | None = None) -> None:
        """Forget all cached contents, in both pools; blocks in use stay with their sequences.

        A new `salt` (a weight version) makes sure that nothing computed before is found by later requests.
        """
        self._pools.reset_cache()
        if salt is not None:
            self._root = salted_root(salt)
            # Waiting sequences were hashed under the old salt.
            for seq_id, table in self._tables.items():
                if not table.block_ids:
                    self._tables[seq_id] = BlockTable(self._device, self.block_size, self._root)

    def used_blocks(self, with_cached: bool = False) -> UsedBlocks:
        """The blocks that sequences hold, in both pools; on demand also those that nobody holds and can be found."""
        return self._pools.used_blocks(with_cached)

    def forget_cached(self) -> None:
        """Forget the contents of blocks that nobody holds, in both pools; blocks in use can still be found."""
        self._pools.forget_cached()

    def snapshot(self, groups: Seq[SequenceGroup]) -> MemorySnapshot:
        """Every block of both pools, between two plans; `groups` are those that are running or swapped out."""
        holdings: dict[BlockAllocator, list[Holding]] = {self._device: [], self._host: []}
        for group in groups:
            for seq in group.unfinished:
                table = self._tables[seq.seq_id]
                holding = Holding(BlockOwner(group.request_id, seq.seq_id), table.block_ids, seq.num_computed_tokens)
                holdings[table.allocator].append(holding)
        device, host = (take_pool_snapshot(pool, self.block_size, held) for pool, held in holdings.items())
        return MemorySnapshot(self.block_size, device, host)

    def check_conservation(self) -> None:
        """Raise AssertionError unless reference counts equal the tables' holdings and all others are free.

        For tests and idle engines, between plans; O(blocks).
        """
        for pool, name in ((self._device, "device"), (self._host, "host")):
            held = [0] * pool.num_blocks
            for table in self._tables.values():
                if table.allocator is pool:
                    for block_id in table.held_ids:
                        held[block_id] += 1
            counts = [pool.ref_count(b) for b in range(pool.num_blocks)]
            assert held == counts, f"a reference count of the {name} pool differs from the tables that hold the block"
            assert pool.num_free == held.count(0), f"free blocks of the {name} pool are lost or handed out twice"

    def _num_touched(self, seqs: Seq[Sequence], num_lookahead_slots: int = 0, num_tokens: int = 1) -> int:
        """Free blocks that the next `num_tokens` tokens of each (or as many as it has) take together."""
        fresh = 0
        to_copy: dict[tuple[int, int], int] = {}  # (shared block, sequences that hold it) -> how many write to it
        for seq in seqs:
            table = self._tables[seq.seq_id]
            end = min(seq.num_computed_tokens + num_tokens, len(seq))
            fresh += table.num_fresh_blocks(end + num_lookahead_slots)
            shared = table.block_to_copy(seq.num_computed_tokens)
            if shared is not None:
                key = shared, table.allocator.ref_count(shared)
                to_copy[key] = to_copy.get(key, 0) + 1
        # The last holder of a shared block writes in place.
        return fresh + sum(min(num, holders - 1) for (_, holders), num in to_copy.items())

    def _fits(self, num_blocks: int) -> AllocStatus:
        reserve = self._watermark_blocks if self.num_used_blocks else 0
        return AllocStatus.OK if self._device.num_free - num_blocks >= reserve else AllocStatus.LATER

    def _table(self, seq: Sequence) -> BlockTable:
        table = self._tables.get(seq.seq_id)
        if table is None:
            table = self._tables[seq.seq_id] = BlockTable(self._device, self.block_size, self._root)
        return table

    def _num_admitted(self, seq: Sequence) -> int:
        """Tokens that get their slots at admission: all, but with a window the cached ones."""
        return len(seq) if self.window is None else seq.num_computed_tokens

    def _find_cached(self, group: SequenceGroup) -> tuple[int, list[tuple[BlockAllocator, int]]]:
        # Prompt log-probabilities need the logits of every prompt token, so nothing of the prompt may be skipped.
        if not self.enable_prefix_caching or group.request.params.prompt_logprobs is not None:
            return 0, []
        leader, *others = group.unfinished
        token_ids = leader.token_ids
        if self.window is not None and others:
            # The others go on from the prompt's last full block, so what is in the window there must be held.
            token_ids = token_ids[: leader.prompt_len - leader.prompt_len % self.block_size + 1]
        return self._table(leader).find_cached(token_ids, (self._device, self._host), self.window)
