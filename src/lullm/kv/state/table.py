"""StateTable: the blocks that hold the recurrent state of one sequence, the same number from its first token on.

Each step replaces the state. A step writes into a copy where others need the old state: forks of the sequence, which
share its blocks until one of them moves on, and the prefix cache. A *snapshot* is the state after a full block of
tokens; it is findable by the hash of all tokens up to there.
"""

from collections.abc import Callable, Iterable, Sequence

from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.kv.hashing import BlockHashes, state_suffix
from lullm.types.packed import pack
from lullm.types.step import BlockPair


class StateTable(BlockTable):
    """A block table whose blocks have no order in time: all of them are shared, copied and findable together.

    Args:
        num_blocks: of the state.
        release_later: takes blocks that the plan being made still reads.
    """

    __slots__ = ("_release_later", "num_to_copy")

    def __init__(
        self,
        allocator: BlockAllocator,
        hashes: BlockHashes,
        group: int,
        num_blocks: int,
        release_later: Callable[[list[int]], None],
    ):
        super().__init__(allocator, hashes, group)
        self.num_to_copy = num_blocks
        self._release_later = release_later

    def contents(self, first: int, end: int) -> list[bytes]:
        """The hashes of the state's blocks after a cached prefix of `end` blocks."""
        return self._contents(end) if end else []

    def allocate(self, num_tokens: int, shared_ids: Iterable[int] = (), num_promoted: int | None = None) -> None:
        """Take the blocks of a snapshot or a fork, which the caller has references to; otherwise fresh ones."""
        fresh = (self.allocator.allocate() for _ in range(self.num_to_copy))
        self.packed_ids = pack(shared_ids) or pack(fresh)

    def num_fresh_blocks(self, num_tokens: int) -> int:
        """0: a state does not grow."""
        return 0

    def block_to_copy(self, first_slot: int) -> int | None:
        """The first block, if others hold the state, so that the next step needs a copy; otherwise None.

        A snapshot that no other sequence holds is copied if there is room, and given up if not.
        """
        return self.block_ids[0] if self.allocator.ref_count(self.block_ids[0]) > 1 else None

    def append_slots(self, first_slot: int, num_tokens: int) -> tuple[BlockPair, ...]:
        """Make the state writable. Returns the pairs to copy before the step."""
        old, allocator = list(self.block_ids), self.allocator
        is_shared = allocator.ref_count(old[0]) > 1
        if not is_shared:
            if not self.is_snapshot:
                return ()
            if allocator.num_free < 2 * self.num_to_copy:
                self.give_up_snapshot()
                return ()
        self.packed_ids = pack(allocator.allocate() for _ in old)
        if is_shared:
            allocator.release(old)
        else:  # only the snapshot holds them until the copies are made
            self._release_later(old)
        return tuple(zip(old, self.block_ids, strict=True))

    @property
    def is_snapshot(self) -> bool:
        """Whether the state can be found by its content."""
        return bool(self.block_ids) and self.allocator.content(self.block_ids[0]) is not None

    def give_up_snapshot(self) -> None:
        """Let the next step overwrite the state, if no other table holds it."""
        if self.is_snapshot and self.allocator.ref_count(self.block_ids[0]) == 1:
            for block_id in self.block_ids:
                self.allocator.forget(block_id)

    def keep_snapshot(self, token_ids: Sequence[int], num_blocks: int) -> None:
        """Make the state after the first `num_blocks` full blocks of tokens findable.

        Does nothing if a complete one exists. Forgets the rest of one that was evicted in part.
        """
        self.hashes.extend(token_ids, num_blocks)
        contents, allocator = self._contents(num_blocks), self.allocator
        found = [allocator.find(content) for content in contents]
        if self.is_snapshot or None not in found:
            return
        for block_id in found:
            if block_id is not None:
                allocator.forget(block_id)
        for block_id, content in zip(self.block_ids, contents, strict=True):
            allocator.promote(block_id, content)

    def promote(self, token_ids: Sequence[int], num_computed_tokens: int) -> list[int]:
        """Nothing to promote: attention groups find tokens; see `keep_snapshot`."""
        return []

    def shrink(self, num_tokens: int) -> None:
        """A state does not shrink and cannot go back, so it takes no guesses."""

    def fork(self, hashes: BlockHashes) -> "StateTable":
        """A table for a sequence with the same tokens; they share the state until one of them moves on."""
        child = StateTable(self.allocator, hashes, self._group, self.num_to_copy, self._release_later)
        for block_id in self.block_ids:
            self.allocator.share(block_id)
        child.allocate(0, self.block_ids)
        return child

    def _contents(self, num_blocks: int) -> list[bytes]:
        """The hashes of the state's blocks after `num_blocks` full blocks of tokens."""
        whole = self.hashes[num_blocks - 1]
        return [whole + state_suffix(self._group, part) for part in range(self.num_to_copy)]
