"""The cached prefix of a sequence: the longest prefix for which every cache group finds the blocks that it needs.

A group with full attention needs all blocks of the prefix; a group with a sliding window needs those that the next
token sees. Each group can only shorten the candidate. Full attention shortens it to its first gap, once. Then the
windows shorten it in turn, until all of them find what they need.
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


@dataclass(slots=True)
class PrefixCacheStats:
    """Counted in tokens at each admission: looked up, found on the device, found in the host pool."""

    queries: int = 0
    hits: int = 0
    host_hits: int = 0


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
    lookups = [_Lookup(hashes, token_ids, group_suffix(index), pools) for index in range(len(groups))]
    windowed = [(group, lookup) for group, lookup in zip(groups, lookups, strict=True) if group.window is not None]
    num_blocks = (len(token_ids) - 1) // size
    for group, lookup in zip(groups, lookups, strict=True):
        if group.window is None:
            num_blocks = lookup.num_from_start(num_blocks)

    def last_gap(end: int) -> int | None:
        gaps = (lookup.last_gap(group.num_blocks_behind(end * size, size), end) for group, lookup in windowed)
        return next((index for index in gaps if index is not None), None)

    while (gap := last_gap(num_blocks)) is not None:
        num_blocks = gap  # the lengths in between need the missing block too: their windows begin no later
    num_skipped = [group.num_blocks_behind(num_blocks * size, size) for group in groups]
    hits = [lookup.hits(first, num_blocks) for lookup, first in zip(lookups, num_skipped, strict=True)]
    return CachedPrefix(num_blocks, num_skipped, hits)


class _Lookup:
    """The blocks of one sequence in one group, looked up in the pools; each at most once."""

    def __init__(
        self, hashes: BlockHashes, token_ids: Sequence[int], suffix: bytes, pools: Sequence[BlockAllocator]
    ) -> None:
        self._hashes = hashes
        self._token_ids = token_ids
        self._suffix = suffix
        self._pools = pools
        self._found: dict[int, Hit] = {}

    def num_from_start(self, end: int) -> int:
        """How many of the first `end` blocks there are without a gap."""
        return next((index for index in range(end) if not self._has(index)), end)

    def last_gap(self, first: int, end: int) -> int | None:
        """The last of the blocks `first`..`end` - 1 that no pool has; None: all are there."""
        return next((index for index in range(end - 1, first - 1, -1) if not self._has(index)), None)

    def hits(self, first: int, end: int) -> list[Hit]:
        """The blocks `first`..`end` - 1, which have been looked up."""
        return [self._found[index] for index in range(first, end)]

    def _has(self, index: int) -> bool:
        if index in self._found:
            return True
        self._hashes.extend(self._token_ids, index + 1)
        content = self._hashes[index] + self._suffix
        for pool in self._pools:
            block_id = pool.find(content)
            if block_id is not None:
                self._found[index] = pool, block_id
                return True
        return False
