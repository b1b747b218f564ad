"""The cached prefix of a sequence: the longest prefix for which every cache group finds the blocks that it needs.

A group with full attention needs all blocks of the prefix; a group with a sliding window needs those that the next
token sees. The lengths at which a window finds all its blocks need not be consecutive. So one pass over the blocks
looks at all groups together and keeps the last length that suits all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lullm.kv.allocator import BlockAllocator
from lullm.kv.cache_group import CacheGroup
from lullm.kv.hashing import BlockHashes, group_suffix

Hit = tuple[BlockAllocator, int]
"""(pool, block id) of a block that was found by its content."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The first `num_blocks` blocks of a sequence need not be computed.

    `num_skipped[g]` leading blocks are not needed by group g, since they are behind the window of all tokens to come;
    `hits[g]` are the others in order. They are not taken yet.
    """

    num_blocks: int
    num_skipped: Sequence[int]
    hits: Sequence[Sequence[Hit]]

    def num_blocks_from(self, pool: BlockAllocator) -> int:
        """The number of places in the sequence whose content comes from this pool for some group."""
        places = zip(self.num_skipped, self.hits, strict=True)
        return len({i for first, own in places for i, (found_in, _) in enumerate(own, first) if found_in is pool})


def nothing_cached(groups: Sequence[CacheGroup]) -> CachedPrefix:
    """The result for an empty cache."""
    return CachedPrefix(0, [0] * len(groups), [[]] * len(groups))


def find_prefix(
    hashes: BlockHashes, token_ids: Sequence[int], groups: Sequence[CacheGroup], pools: Sequence[BlockAllocator]
) -> CachedPrefix:
    """The longest prefix of `token_ids` that need not be computed. `hashes` are extended as far as that is looked for.

    A block comes from the first pool that has it. The last token is left out: it must be computed, since the next
    token is drawn from its logits.
    """
    size = hashes.block_size
    hits: list[list[Hit | None]] = [[] for _ in groups]
    run_starts = [0] * len(groups)  # per group: all blocks from here on were found
    num_blocks = 0
    for end in range(1, (len(token_ids) - 1) // size + 1):
        hashes.extend(token_ids, end)
        is_whole = True
        for index, group in enumerate(groups):
            hit = _find(hashes[end - 1] + group_suffix(index), pools)
            hits[index].append(hit)
            if hit is None:
                run_starts[index] = end
            is_whole = is_whole and run_starts[index] <= group.num_blocks_behind(end * size, size)
        if is_whole:
            num_blocks = end
        elif any(start and group.window is None for start, group in zip(run_starts, groups, strict=True)):
            break  # full attention needs a block that is gone, for this length and all greater ones
    num_skipped = [group.num_blocks_behind(num_blocks * size, size) for group in groups]
    found = [
        [hit for hit in own[first:num_blocks] if hit is not None] for own, first in zip(hits, num_skipped, strict=True)
    ]
    return CachedPrefix(num_blocks, num_skipped, found)


def _find(content: bytes, pools: Sequence[BlockAllocator]) -> Hit | None:
    for pool in pools:
        block_id = pool.find(content)
        if block_id is not None:
            return pool, block_id
    return None
