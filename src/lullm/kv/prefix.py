"""The cached prefix of a sequence: the longest prefix whose needed blocks every cache group finds.

A group with full attention needs all blocks of the prefix. A group with a sliding window needs those that the next
token sees. A recurrent group needs the state after the prefix. Each group can only shorten the candidate. Full
attention shortens it to its first gap, once. Then the others shorten it in turn, until all find the blocks that they
need.
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
    """The first `num_blocks` blocks of a sequence are cached. `find_prefix` takes no references to them.

    `num_skipped[g]`: leading blocks that group g does not need, since they lie before the window of all later tokens.
    `hits[g]`: the other blocks in order; in a recurrent group, the blocks of its state.
    """

    num_blocks: int
    num_skipped: Sequence[int]
    hits: Sequence[Sequence[Hit]]

    def num_blocks_from(self, pool: BlockAllocator, num_groups: int) -> int:
        """The number of the sequence's places with content in this pool, in one of the first `num_groups` groups."""
        places = list(zip(self.num_skipped, self.hits, strict=True))[:num_groups]
        return len({i for first, own in places for i, (found_in, _) in enumerate(own, first) if found_in is pool})


@dataclass(slots=True)
class PrefixCacheStats:
    """Tokens counted at each admission: looked up, found on the device, found in the host pool."""

    queries: int = 0
    hits: int = 0
    host_hits: int = 0


def nothing_cached(groups: Sequence[CacheGroup]) -> CachedPrefix:
    """The result for an empty cache."""
    return CachedPrefix(0, [0] * len(groups), [[]] * len(groups))


def find_prefix(
    hashes: BlockHashes, token_ids: Sequence[int], groups: Sequence[CacheGroup], pools: Sequence[BlockAllocator]
) -> CachedPrefix:
    """The longest prefix of `token_ids` that is cached. Extends `hashes` as far as it looks.

    A block comes from the first pool that has it. The last token is left out: it must be computed, since the next token
    is drawn from its logits.
    """
    size = hashes.block_size
    lookups = [_Lookup(hashes, token_ids, pools, group, number) for number, group in enumerate(groups)]
    num_blocks = (len(token_ids) - 1) // size
    while (shorter := min(lookup.longest(num_blocks) for lookup in lookups)) < num_blocks:
        num_blocks = shorter
    num_skipped = [group.num_blocks_behind(num_blocks * size, size) for group in groups]
    return CachedPrefix(num_blocks, num_skipped, [lookup.hits(num_blocks) for lookup in lookups])


class _Lookup:
    """The cached blocks of one sequence in one group; each block is looked up at most once."""

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
        """The longest hit of at most `end` blocks that this group allows; an upper bound."""
        if not self._group.keeps_tokens:
            return next((length for length in range(end, 0, -1) if self._has(length - 1)), 0)
        if self._group.window is None:
            if self._num_from_start is None:
                self._num_from_start = next((index for index in range(end) if not self._has(index)), end)
            return min(self._num_from_start, end)
        size = self._hashes.block_size
        first = self._group.num_blocks_behind(end * size, size)
        # The lengths in between need the missing block too, since their windows begin no later.
        return next((index for index in range(end - 1, first - 1, -1) if not self._has(index)), end)

    def hits(self, num_blocks: int) -> list[Hit]:
        """The blocks that the group needs to continue after a hit of this length. They have been looked up."""
        size = self._hashes.block_size
        first = self._group.num_blocks_behind(num_blocks * size, size)
        if not self._group.keeps_tokens:
            first = max(num_blocks - 1, 0)
        return [hit for index in range(first, num_blocks) for hit in self._found[index] or ()]

    def _has(self, index: int) -> bool:
        """Whether the pools have all blocks of the content at this index."""
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
        """Look in the pools in order."""
        for pool in self._pools:
            block_id = pool.find(content)
            if block_id is not None:
                return pool, block_id
        return None
