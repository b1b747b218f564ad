"""MemorySnapshot: every block of both pools at one moment, as plain data. For pictures, tests and debugging."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from lullm.kv.allocator import BlockAllocator

BlockState = Literal["free", "cached", "used"]


@dataclass(frozen=True, slots=True, order=True)
class BlockOwner:
    """One sequence that holds a block."""

    request_id: str
    seq_id: int


@dataclass(frozen=True, slots=True)
class BlockSnapshot:
    """One physical block.

    Attributes:
        owners: one per sequence that holds the block; several if it is shared, none if it is free.
        num_tokens: slots that hold the KV of a token, 0 to the block size.
        content: hash under which the block can be found, in hex; None if it cannot be found.
    """

    block_id: int
    owners: tuple[BlockOwner, ...]
    num_tokens: int
    content: str | None

    @property
    def state(self) -> BlockState:
        """'cached': no sequence holds it, but its content can be found; it counts as free."""
        return "used" if self.owners else "cached" if self.content is not None else "free"

    @property
    def request_ids(self) -> tuple[str, ...]:
        """The requests that hold the block, each once."""
        return tuple(dict.fromkeys(owner.request_id for owner in self.owners))


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The blocks of one pool; `blocks[i].block_id == i`."""

    blocks: tuple[BlockSnapshot, ...]

    def count(self, state: BlockState) -> int:
        """Blocks in this state."""
        return sum(block.state == state for block in self.blocks)

    @property
    def num_tokens(self) -> int:
        """Slots of used blocks that hold a token. A slot that several sequences share counts once.

        A model with several cache groups holds a token in a slot of each group.
        """
        return sum(block.num_tokens for block in self.blocks if block.owners)

    @property
    def num_saved(self) -> int:
        """Blocks that sharing saves: the sequences would hold so many more without it."""
        return sum(len(block.owners) - 1 for block in self.blocks if block.owners)


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Both pools between two steps."""

    block_size: int
    device: PoolSnapshot
    host: PoolSnapshot


@dataclass(frozen=True, slots=True)
class Holding:
    """The blocks of one sequence in order, negative where it holds none, and its number of computed tokens."""

    owner: BlockOwner
    block_ids: Sequence[int]
    num_computed_tokens: int


def take_pool_snapshot(pool: BlockAllocator, block_size: int, holdings: Iterable[Holding]) -> PoolSnapshot:
    """The blocks of a pool with these holders. O(blocks + holdings)."""
    owners: list[list[BlockOwner]] = [[] for _ in range(pool.num_blocks)]
    fills = [0] * pool.num_blocks
    for holding in holdings:
        for index, block_id in enumerate(holding.block_ids):
            if block_id < 0:
                continue
            owners[block_id].append(holding.owner)
            # Sequences that share a block may have computed different numbers of its tokens.
            fill = min(max(holding.num_computed_tokens - index * block_size, 0), block_size)
            fills[block_id] = max(fills[block_id], fill)
    blocks = []
    for block_id in range(pool.num_blocks):
        content = pool.content(block_id)
        num_tokens = block_size if content is not None else fills[block_id]
        blocks.append(
            BlockSnapshot(
                block_id, tuple(sorted(owners[block_id])), num_tokens, None if content is None else content.hex()
            )
        )
    return PoolSnapshot(tuple(blocks))
