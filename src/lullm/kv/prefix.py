"""The cached prefix of a sequence: the longest prefix for which every cache group finds the blocks that it needs.

A group with full attention needs all blocks of the prefix; a group with a sliding window needs those that the next
token sees; a recurrent group needs the state behind the prefix. Each group can only shorten the candidate. Full
attention shortens it to its first gap, once. Then the others shorten it in turn, until all find what they need.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lullm.kv.allocator import BlockAllocator
from lullm.kv.cache_group import CacheGroup
from lullm.kv.hashing import BlockHashes, group_suffix, state_suffix

Hit = tuple[BlockAllocator, int]
"""(pool, block id) of a block that was found by its content."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The first `num_blocks` blocks of a sequence need not be computed.

    `num_skipped[g]` leading blocks are not needed by group g, since they are behind the window of all tokens to come;
    `hits[g]` are the others in order, and of a recurrent group the blocks of its state. They are not taken yet.
    """

    num_blocks: int
    num_skipped: Sequence[int]
    hits: Sequence[Sequence[Hit]]

    def num_blocks_from(self, pool: BlockAllocator, num_groups: int) -> int:
        """The number of places in the sequence whose content comes from this pool for some of the first groups."""
        places = list(zip(self.num_skipped, self.hits, strict=True))[:num_groups]
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
    lookups = [_Lookup(hashes, token_ids, pools, group, number) for number, group in enumerate(groups)]
    num_blocks = (len(token_ids) - 1) // size
    while (shorter := min(lookup.longest(num_blocks) for lookup in lookups)) < num_blocks:
        num_blocks = shorter
    num_skipped = [group.num_blocks_behind(num_blocks * size, size) for group in groups]
    return CachedPrefix(num_blocks, num_skipped, [lookup.hits(num_blocks) for lookup in lookups])


class _Lookup:
    """What the pools have of one sequence in one group; each block is looked up at most once."""

    def __init__(
        self,
        hashes: BlockHashes,
        token_ids: Sequence[int],
        pools: Sequence[BlockAllocator],
        group: CacheGroup,
        number: int,
    ) -> None:
        self._hashes = hashes
        self._token_ids = token_ids
        self._pools = pools
        self._group = group
        self._suffixes = [group_suffix(number)]
        if not group.keeps_tokens:
            self._suffixes = [state_suffix(number, part) for part in range(group.num_state_blocks)]
        self._found: dict[int, list[Hit] | None] = {}
        self._num_from_start: int | None = None

    def longest(self, end: int) -> int:
        """A length of at most `end` blocks, above which none up to `end` can be a hit."""
        if not self._group.keeps_tokens:
            return next((length for length in range(end, 0, -1) if self._has(length - 1)), 0)
        if self._group.window is None:
            if self._num_from_start is None:
                self._num_from_start = next((index for index in range(end) if not self._has(index)), end)
            return min(self._num_from_start, end)
        size = self._hashes.block_size
        first = self._group.num_blocks_behind(end * size, size)
        # The lengths in between need the missing block too: their windows begin no later.
        return next((index for index in range(end - 1, first - 1, -1) if not self._has(index)), end)

    def hits(self, num_blocks: int) -> list[Hit]:
        """The blocks that the group needs behind a hit of this length, which have been looked up."""
        size = self._hashes.block_size
        first = self._group.num_blocks_behind(num_blocks * size, size)
        if not self._group.keeps_tokens:
            first = max(num_blocks - 1, 0)
        return [hit for index in range(first, num_blocks) for hit in self._found[index] or ()]

    def _has(self, index: int) -> bool:
        """Whether some pool has each block that the block of tokens with this index names."""
        if index not in self._found:
            self._hashes.extend(self._token_ids, index + 1)
            found: list[Hit] = []
            for suffix in self._suffixes:
                hit = self._find(self._hashes[index] + suffix)
                if hit is None:
                    break
                found.append(hit)
            self._found[index] = found if len(found) == len(self._suffixes) else None
        return self._found[index] is not None

    def _find(self, content: bytes) -> Hit | None:
        """In the first pool that has it."""
        for pool in self._pools:
            block_id = pool.find(content)
            if block_id is not None:
                return pool, block_id
        return None
