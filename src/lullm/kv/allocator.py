"""Block allocators: physical blocks with reference counts.

A block is *mutable* while its sequence fills it and *immutable* once it is full. `NaiveBlockAllocator` counts
references only. `PrefixCachingBlockAllocator` also has the content hash of immutable blocks. After the last sequence
has released such a block, its content stays and can be found until the block is reused.

The device pool and the host pool have an allocator each; a block id is valid in its pool only.
"""

import itertools
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator


class BlockAllocator:
    """A pool of blocks, as block tables use it. All calls are O(1) per block. Finds no contents; subclasses may.

    Attributes:
        is_drafted: [num_blocks], not 0: the block is full of the draft model's keys and values, too. Set from outside,
            and cleared when the block is handed out.
    """

    _free: "list[int] | FreeQueue"

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._ref_counts = array("i", bytes(4 * num_blocks))
        self.is_drafted = bytearray(num_blocks)

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out, cached contents included."""
        return len(self._free)

    def allocate(self) -> int:
        """A mutable block with reference count 1. The caller has checked `num_free`."""
        raise NotImplementedError

    def next_free(self, num: int) -> list[int]:
        """The blocks that `allocate` would hand out next, at most `num`."""
        raise NotImplementedError

    def share(self, block_id: int) -> None:
        """One more sequence holds the block."""
        self._ref_counts[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One sequence fewer holds each block. Blocks that become free go behind the other free ones, in this order."""
        ref_counts = self._ref_counts
        freed = []
        for block_id in block_ids:
            ref_count = ref_counts[block_id] - 1
            ref_counts[block_id] = ref_count
            if ref_count == 0:
                freed.append(block_id)
        self._free.extend(freed)

    def ref_count(self, block_id: int) -> int:
        """Sequences that hold the block."""
        return self._ref_counts[block_id]

    def find(self, block_hash: bytes) -> int | None:
        """The block with this content, in use or free, or None."""
        return None

    def promote(self, block_id: int, block_hash: bytes) -> bool:
        """Mark the block as immutable with this content. False: another block has the same content already."""
        return True

    def content(self, block_id: int) -> bytes | None:
        """The hash under which the block can be found; None if it cannot."""
        return None

    def cached_ids(self) -> Collection[int]:
        """All blocks that can be found, in use or free; valid until the next call of another method."""
        return ()

    def forget(self, block_id: int) -> None:
        """The block cannot be found any more; in use or free."""

    def reset_cache(self) -> None:
        """Forget all contents: no block is found by its hash any more."""

    def forget_free(self) -> None:
        """Forget the contents of free blocks; those of blocks in use can still be found."""


class NaiveBlockAllocator(BlockAllocator):
    """Reference counts and a stack of free blocks. Only forks share blocks."""

    def __init__(self, num_blocks: int):
        super().__init__(num_blocks)
        self._free: list[int] = list(range(num_blocks - 1, -1, -1))

    def allocate(self) -> int:
        block_id = self._free.pop()
        self._ref_counts[block_id] = 1
        self.is_drafted[block_id] = 0
        return block_id

    def next_free(self, num: int) -> list[int]:
        return self._free[: -num - 1 : -1]


class FreeQueue:
    """Free blocks, least recently used first: a doubly linked list in two arrays, 8 bytes a block.

    A hit on a cached free block takes it out of the middle in O(1).
    """

    def __init__(self, num_blocks: int):
        # One node more than blocks: the sentinel. Its next is the head, its previous is the tail.
        self._sentinel = num_blocks
        self._next = array("i", range(1, num_blocks + 2))
        self._prev = array("i", range(-1, num_blocks))
        self._next[num_blocks] = 0
        self._prev[0] = num_blocks
        self._len = num_blocks

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[int]:
        node = self._next[self._sentinel]
        while node != self._sentinel:
            yield node
            node = self._next[node]

    def extend(self, block_ids: Iterable[int]) -> None:
        """Put blocks at the end, in this order: the last of them is reused last."""
        next_, prev, sentinel = self._next, self._prev, self._sentinel
        tail = prev[sentinel]
        for block_id in block_ids:
            next_[tail] = block_id
            prev[block_id] = tail
            tail = block_id
            self._len += 1
        next_[tail] = sentinel
        prev[sentinel] = tail

    def remove(self, block_id: int) -> None:
        """Remove a block from any place."""
        before, behind = self._prev[block_id], self._next[block_id]
        self._next[before] = behind
        self._prev[behind] = before
        self._len -= 1

    def popleft(self) -> int:
        """The least recently used block. The caller has checked that there is one."""
        next_, sentinel = self._next, self._sentinel
        head = next_[sentinel]
        behind = next_[head]
        next_[sentinel] = behind
        self._prev[behind] = sentinel
        self._len -= 1
        return head


class PrefixCachingBlockAllocator(BlockAllocator):
    """Reference counts, and an index from content hash to block.

    A block is in the free queue exactly while its count is 0; its content may still be in the index then. Reuse for
    other content calls `on_evict` with its id, hash and `is_drafted`, and removes it from the index (eviction, least
    recently used first).
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int, bytes, int], None] | None = None):
        super().__init__(num_blocks)
        self._on_evict = on_evict
        self._free: FreeQueue = FreeQueue(num_blocks)
        self._hashes: list[bytes | None] = [None] * num_blocks
        self._index: dict[bytes, int] = {}

    def allocate(self) -> int:
        block_id = self._free.popleft()
        if self._hashes[block_id] is not None:
            self._evict(block_id)
        self._ref_counts[block_id] = 1
        self.is_drafted[block_id] = 0
        return block_id

    def next_free(self, num: int) -> list[int]:
        return list(itertools.islice(self._free, num))

    def share(self, block_id: int) -> None:
        if self._ref_counts[block_id] == 0:
            self._free.remove(block_id)
        self._ref_counts[block_id] += 1

    def find(self, block_hash: bytes) -> int | None:
        return self._index.get(block_hash)

    def promote(self, block_id: int, block_hash: bytes) -> bool:
        # A second block with the same content is not in the index, and is freed like a block without content.
        if self._index.setdefault(block_hash, block_id) != block_id:
            return False
        self._hashes[block_id] = block_hash
        return True

    def content(self, block_id: int) -> bytes | None:
        return self._hashes[block_id]

    def cached_ids(self) -> Collection[int]:
        return self._index.values()

    def forget(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        if block_hash is not None:
            del self._index[block_hash]
            self._hashes[block_id] = None

    def reset_cache(self) -> None:
        for block_id in self._index.values():
            self._hashes[block_id] = None
        self._index.clear()

    def forget_free(self) -> None:
        for block_hash, block_id in list(self._index.items()):
            if self._ref_counts[block_id] == 0:
                self._hashes[block_id] = None
                del self._index[block_hash]

    def _evict(self, block_id: int) -> None:
        block_hash = self._hashes[block_id]
        assert block_hash is not None
        if self._on_evict is not None:
            self._on_evict(block_id, block_hash, self.is_drafted[block_id])
        del self._index[block_hash]
        self._hashes[block_id] = None
