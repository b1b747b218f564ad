"""BlockAdmission: allocates the blocks of a sequence group that begins or comes back, cached ones included."""

import enum
import itertools
from collections.abc import Sequence as Seq

from lullm.kv.block_table import NULL_BLOCK, BlockTable
from lullm.kv.cache_group import CacheGroup
from lullm.kv.growth import Growth
from lullm.kv.hashing import BlockHashes, salted_root
from lullm.kv.pool_pair import PoolPair
from lullm.kv.prefix import CachedPrefix, PrefixCacheStats, find_prefix, nothing_cached
from lullm.kv.state.table import StateTable
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.units import cdiv


class AllocStatus(enum.Enum):
    """OK: the group can be allocated now; LATER: when others have freed blocks; NEVER: it is larger than the pool."""

    OK = enum.auto()
    LATER = enum.auto()
    NEVER = enum.auto()


class BlockAdmission:
    """Allocates the tables of sequences (`tables`, by seq_id). `num_reserved`: blocks that stay free (watermark).

    Attributes:
        root: the parent hash of first blocks, which `change_salt` replaces.
    """

    def __init__(
        self,
        block_size: int,
        groups: Seq[CacheGroup],
        pools: PoolPair,
        tables: dict[int, tuple[BlockTable, ...]],
        growth: Growth,
        num_reserved: int,
        enable_prefix_caching: bool,
    ) -> None:
        self._block_size = block_size
        self._groups = groups
        self._pools = pools
        self._device, self._host = pools.device, pools.host
        self._tables = tables
        self._most_touched = growth.most_touched
        self._num_reserved = num_reserved
        self._enable_prefix_caching = enable_prefix_caching
        self._has_windows = any(cache.window is not None for cache in groups)
        self._num_token_groups = sum(cache.keeps_tokens for cache in groups)  # recurrent groups come last
        self._has_states = self._num_token_groups < len(groups)
        self.root = salted_root(b"")
        self.prefix_cache = PrefixCacheStats()

    def num_required_blocks(self, group: SequenceGroup) -> int:
        """The number of blocks that the whole group takes if no block of it is cached.

        Sequences of one group share the full blocks of their prompt. Sequences still to be forked copy the partly
        filled block at their first token, so they take one block each. With a window a sequence takes enough blocks to
        go on token by token; larger chunks use free blocks beyond that. This holds in each cache group. Every sequence
        has its own recurrent state. Rows of a picture that see each other are computed at once.
        """
        leader, *others = group.unfinished
        shared = self._num_shared(leader)
        counts = [cdiv(len(leader), self._block_size)] + [cdiv(len(seq), self._block_size) - shared for seq in others]
        most = max((place.num_rows for place in leader.tiles if place.geometry.is_mutual), default=1)
        held = sum(cache.num_held_blocks(count, self._block_size, most) for cache in self._groups for count in counts)
        return held + group.num_unborn * self._most_touched(1)

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Whether `allocate(group)` fits, watermark included. The watermark does not bind while the pool is idle."""
        required = self.num_required_blocks(group)
        if required > self._device.num_blocks:
            return AllocStatus.NEVER
        # Cached blocks in use cost no free block; cached blocks in the free queue do.
        hits = self.find_cached(group).hits
        # A state in use costs one, for its copy.
        own_hits = itertools.chain.from_iterable(hits[: self._num_token_groups])
        in_use = sum(pool is self._device and pool.ref_count(block_id) > 0 for pool, block_id in own_hits)
        return self.fits(required - in_use)

    def allocate(self, group: SequenceGroup) -> int:
        """Give every unfinished sequence of the group blocks for all its tokens, and set its computed tokens.

        Returns the number of the leader's tokens whose KV was in the prefix cache. The other sequences start after the
        full blocks of the prompt, which they share with the leader. They must not be computed before the leader has
        computed these blocks. With a window their tables hold NULL_BLOCK until `share_prompt`. With recurrent layers
        they start at their first token, because the leader does not keep the state that they would need.
        """
        leader, *others = group.unfinished
        prefix = self.find_cached(group)
        for pool, block_id in itertools.chain.from_iterable(prefix.hits):
            pool.share(block_id)  # hold all of them before a fresh block can evict one
        leader.num_computed_tokens = prefix.num_blocks * self._block_size
        for cache, table, num_skipped, own in zip(
            self._groups, self._tables_of(leader), prefix.num_skipped, prefix.hits, strict=True
        ):
            contents = table.contents(num_skipped, prefix.num_blocks)
            cached = [
                block_id if pool is self._device else self._pools.restore(block_id, content)
                for content, (pool, block_id) in zip(contents, own, strict=True)
            ]
            table.allocate(cache.num_admitted_tokens(leader), [NULL_BLOCK] * num_skipped + cached)
        self.prefix_cache.queries += len(leader)
        self.prefix_cache.hits += leader.num_computed_tokens
        num_host_hits = prefix.num_blocks_from(self._host, self._num_token_groups)
        self.prefix_cache.host_hits += num_host_hits * self._block_size
        num_shared = self._num_shared(leader)
        for seq in others:
            seq.num_computed_tokens = num_shared * self._block_size
            for cache, table, first in zip(
                self._groups, self._tables_of(seq), self._tables[leader.seq_id], strict=True
            ):
                table.allocate(cache.num_admitted_tokens(seq), [NULL_BLOCK] * num_shared)
                if cache.window is None:
                    table.borrow(first, 0, num_shared)
        return leader.num_computed_tokens

    def share_prompt(self, leader: Sequence, seq: Sequence) -> None:
        """Let `seq` share the prompt's full blocks if it waits for them; the leader's next step completes them.

        Only in groups with a window, where those blocks did not exist at admission. Idempotent.
        """
        num_computed, num_shared = seq.num_computed_tokens, self._num_shared(leader)
        if not self._has_windows or self._has_states or num_computed != num_shared * self._block_size:
            return
        for cache, own, other in zip(self._groups, self._tables[seq.seq_id], self._tables[leader.seq_id], strict=True):
            own.borrow(other, cache.num_blocks_behind(num_computed, self._block_size), num_shared)

    def fits(self, num_blocks: int) -> AllocStatus:
        """Whether `num_blocks` are free, watermark included. The watermark does not bind while the pool is idle."""
        if num_blocks > self._device.num_blocks:
            return AllocStatus.NEVER
        reserve = self._num_reserved if self._device.num_free < self._device.num_blocks else 0
        return AllocStatus.OK if self._device.num_free - num_blocks >= reserve else AllocStatus.LATER

    def change_salt(self, salt: bytes) -> None:
        """From now on, sequences find no block that was computed before. Waiting ones were hashed with the old salt."""
        self.root = salted_root(salt)
        for seq_id, tables in self._tables.items():
            if not any(table.block_ids for table in tables):
                self._tables[seq_id] = self.empty_tables(tables[0].hashes)

    def _tables_of(self, seq: Sequence) -> tuple[BlockTable, ...]:
        tables = self._tables.get(seq.seq_id)
        if tables is None:
            tables = self._tables[seq.seq_id] = self.empty_tables(seq)
        return tables

    def empty_tables(self, of: Sequence | BlockHashes) -> tuple[BlockTable, ...]:
        """New tables for a sequence, hashed as the sequence or the older hashes say."""
        salt = of.cache_salt if isinstance(of, Sequence) else of.salt
        hashes = BlockHashes(self._block_size, self.root, salt, of.adapter_digest, of.tiles)
        release_later = self._pools.release_later
        return tuple(
            BlockTable(self._device, hashes, index)
            if cache.keeps_tokens
            else StateTable(self._device, hashes, index, cache.num_state_blocks, release_later)
            for index, cache in enumerate(self._groups)
        )

    def _num_shared(self, leader: Sequence) -> int:
        """Blocks of the leader's prompt that the sequences of a group share when it comes back.

        Not one that the prompt's last token fills: a fork whose first token was lost with its step has nothing else to
        compute, and would wait for that token for ever.
        """
        return 0 if self._has_states else (leader.prompt_len - 1) // self._block_size

    def find_cached(self, group: SequenceGroup) -> CachedPrefix:
        """The cached blocks of the leader's beginning, in either pool."""
        most = group.most_cached
        if not self._enable_prefix_caching or most == 0:
            return nothing_cached(self._groups)
        leader, *others = group.unfinished
        token_ids = leader.token_ids if most is None else leader.token_ids[: most + 1]
        if self._has_windows and others and not self._has_states:
            # The others continue from the prompt's last full block, so the blocks in the window there must be held.
            token_ids = token_ids[: self._num_shared(leader) * self._block_size + 1]
        hashes = self._tables_of(leader)[0].hashes
        return find_prefix(hashes, token_ids, self._groups, (self._device, self._host))
