"""PoolPair: the device pool and the host pool, and every move of a block from one to the other.

Blocks move for two reasons. A group that is preempted may be *swapped*: all its block tables go out to the host pool,
and come back later. And with prefix caching the host pool is a second, larger cache: content that is evicted from the
device is *demoted* to it if there is room. A later request *restores* it, which saves computing it. In both, content
that the other pool has already is not moved again.

Nothing is copied here: the returned pairs of block ids go into the step's plan. A step moves blocks in the order swap
out, swap in, copy, and then writes KV. So a device block that is swapped out can be reused in the same plan. A host
block that is swapped *in* keeps its place until the plan is complete (`take_cache_moves`), since content that is
swapped out in the same plan must not overwrite it.
"""

from collections.abc import Collection, Sequence

from lullm.kv.allocator import BlockAllocator, NaiveBlockAllocator, PrefixCachingBlockAllocator
from lullm.kv.block_table import NULL_BLOCK, BlockTable
from lullm.types.sleep import UsedBlocks
from lullm.types.step import BlockPair


class PoolPair:
    """An allocator for each pool, and the moves of cached content that wait for the plan being made.

    It handles block tables, not sequences: the caller chooses the group to move, and checks that there is room.
    """

    def __init__(self, num_blocks: int, num_host_blocks: int, enable_prefix_caching: bool) -> None:
        self.device: BlockAllocator
        self.host: BlockAllocator
        self._demoted: list[BlockPair] = []
        if enable_prefix_caching:
            self.host = PrefixCachingBlockAllocator(num_host_blocks)
            demote = _Demotion(self.host, self._demoted) if num_host_blocks else None
            self.device = PrefixCachingBlockAllocator(num_blocks, demote)
        else:
            self.host = NaiveBlockAllocator(num_host_blocks)
            self.device = NaiveBlockAllocator(num_blocks)
        self._restored: list[BlockPair] = []
        self._host_to_release: list[int] = []
        self._device_to_release: list[int] = []

    # -- groups --------------------------------------------------------------------------------------------------

    def swap_out(self, tables: Sequence[BlockTable]) -> list[BlockPair]:
        """Move a group's tables to the host pool. Returns (device, host) pairs; a shared block moves once."""
        moved = {NULL_BLOCK: NULL_BLOCK}
        pairs: list[BlockPair] = []
        for table in tables:
            for block_id in table.held_ids:
                if block_id in moved:
                    self.host.share(moved[block_id])
                elif (kept := _find(self.host, content := self.device.content(block_id))) is not None:
                    self.host.share(kept)
                    moved[block_id] = kept
                else:
                    moved[block_id] = _allocate(self.host, content, self.device.is_drafted[block_id])
                    pairs.append((block_id, moved[block_id]))
        for table in tables:
            old = table.move(self.host, (moved[block_id] for block_id in table.block_ids))
            self.device.release(reversed(old))
        return pairs

    def swap_in(self, tables: Sequence[BlockTable]) -> list[BlockPair]:
        """Move a group's tables back to the device. Returns the (host, device) pairs of blocks that it lacks."""
        moved: dict[int, int] = {}
        for block_id in dict.fromkeys(b for table in tables for b in table.held_ids):
            kept = _find(self.device, self.host.content(block_id))
            if kept is not None:  # hold it before a fresh block can evict it
                self.device.share(kept)
                moved[block_id] = kept
        found = set(moved)
        moved[NULL_BLOCK] = NULL_BLOCK
        pairs: list[BlockPair] = []
        for table in tables:
            for block_id in table.held_ids:
                if block_id in found:
                    found.discard(block_id)  # its first holder's reference is taken above
                elif block_id in moved:
                    self.device.share(moved[block_id])
                else:
                    is_drafted = self.host.is_drafted[block_id]
                    moved[block_id] = _allocate(self.device, self.host.content(block_id), is_drafted)
                    pairs.append((block_id, moved[block_id]))
            self._host_to_release += table.move(self.device, (moved[block_id] for block_id in table.block_ids))
        return pairs

    # -- cached content ------------------------------------------------------------------------------------------

    def restore(self, host_block_id: int, content: bytes) -> int:
        """A device block for content on the host. The caller holds the host block."""
        block_id = _allocate(self.device, content, self.host.is_drafted[host_block_id])
        self._restored.append((host_block_id, block_id))
        self._host_to_release.append(host_block_id)
        return block_id

    def take_cache_moves(self) -> tuple[list[BlockPair], list[BlockPair]]:
        """Moves of cached content for the plan that is being made: (swap out, swap in). Call once, at its end."""
        self.host.release(self._host_to_release)
        self.device.release(self._device_to_release)
        out, into = self._demoted.copy(), self._restored
        self._demoted.clear()
        self._host_to_release, self._device_to_release, self._restored = [], [], []
        return out, into

    def release_later(self, block_ids: list[int]) -> None:
        """Release device blocks once the plan is complete: the plan copies them after it has moved blocks in."""
        self._device_to_release += block_ids

    # -- both pools at once --------------------------------------------------------------------------------------

    def used_blocks(self, with_cached: bool) -> UsedBlocks:
        """The blocks that sequences hold, in both pools. `with_cached`: also free blocks that can be found."""
        device, host = (
            [b for b in range(pool.num_blocks) if pool.ref_count(b) or (with_cached and pool.content(b) is not None)]
            for pool in (self.device, self.host)
        )
        return UsedBlocks(device, host)

    def cached_ids(self) -> tuple[Collection[int], Collection[int]]:
        """The blocks that can be found, in use or free: (device, host). Valid until the next call."""
        return self.device.cached_ids(), self.host.cached_ids()

    def forget_cached(self) -> None:
        """Forget the contents of free blocks, in both pools; blocks in use can still be found."""
        self.device.forget_free()
        self.host.forget_free()

    def reset_cache(self) -> None:
        """Forget all cached contents, in both pools; blocks in use stay with their sequences."""
        self.device.reset_cache()
        self.host.reset_cache()

    def check_conservation(self, tables: Sequence[BlockTable]) -> None:
        """Check that held blocks have the counts of `tables`, and that all others are free. O(blocks).

        Raises AssertionError.
        """
        for pool, name in ((self.device, "device"), (self.host, "host")):
            held = [0] * pool.num_blocks
            for table in tables:
                if table.allocator is pool:
                    for block_id in table.held_ids:
                        held[block_id] += 1
            counts = [pool.ref_count(b) for b in range(pool.num_blocks)]
            assert held == counts, f"a reference count of the {name} pool differs from the tables that hold the block"
            assert pool.num_free == held.count(0), f"free blocks of the {name} pool are lost or handed out twice"


class _Demotion:
    """The device pool's callback. It is no method of `PoolPair`: such a circle would outlive its engine."""

    def __init__(self, host: BlockAllocator, demoted: list[BlockPair]):
        self._host = host
        self._demoted = demoted

    def __call__(self, block_id: int, content: bytes, is_drafted: int) -> None:
        """The device pool is about to reuse a cached block: move its content to the host if there is room."""
        if self._host.num_free and self._host.find(content) is None:
            kept = _allocate(self._host, content, is_drafted)
            self._host.release((kept,))
            self._demoted.append((block_id, kept))


def _find(pool: BlockAllocator, content: bytes | None) -> int | None:
    """The block of a pool that has this content, or None."""
    return None if content is None else pool.find(content)


def _allocate(pool: BlockAllocator, content: bytes | None, is_drafted: int) -> int:
    """A fresh block of a pool, findable by the content that it is about to get."""
    block_id = pool.allocate()
    pool.is_drafted[block_id] = is_drafted
    if content is not None:
        pool.promote(block_id, content)
    return block_id
