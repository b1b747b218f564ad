"""Images: the blocks of two pools, and of one sequence in one cache group, as plain data."""

import msgspec


class TableImage(msgspec.Struct, frozen=True, array_like=True):
    """A `BlockTable`: its blocks in order, negative where they have left a window; all are in one pool.

    `num_dropped`, `num_promoted`, `forked_tail`: the table's own counters.
    """

    block_ids: list[int]
    is_on_host: bool = False
    num_dropped: int = 0
    num_promoted: int = 0
    forked_tail: int = -1


class PoolImage(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of a pool whose contents count: first `num_held` that sequences hold, then those that are only cached,
    least recently used first.

    `contents`: the hash under which each can be found; empty if it cannot.
    """

    block_ids: list[int]
    contents: list[bytes]
    num_held: int

    @property
    def held(self) -> list[int]:
        """The blocks that sequences hold."""
        return self.block_ids[: self.num_held]

    @property
    def cached(self) -> list[int]:
        """The blocks that are only cached, least recently used first."""
        return self.block_ids[self.num_held :]


class BlockSpaceImage(msgspec.Struct, frozen=True, array_like=True):
    """Both pools. `num_blocks`: of the whole device pool. `root`: the parent hash of first blocks."""

    num_blocks: int
    root: bytes
    device: PoolImage
    host: PoolImage
