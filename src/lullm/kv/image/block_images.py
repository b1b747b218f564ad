"""BlockImages: takes the images of a `BlockSpaceManager`'s blocks, and brings them back in another one.

Blocks get other numbers there. The pool may be smaller: the caller says which blocks come back.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq

from lullm.kv.admission import BlockAdmission
from lullm.kv.allocator import BlockAllocator
from lullm.kv.block_table import NULL_BLOCK, BlockTable
from lullm.kv.image.image import BlockSpaceImage, PoolImage, TableImage
from lullm.kv.pool_pair import PoolPair
from lullm.types.sequence import Sequence
from lullm.types.sleep import UsedBlocks


class BlockImages:
    """Between two plans. `tables`: by seq_id.

    To bring blocks back: `begin`, which says where their contents go; then `cancel`, or `adopt` for each sequence that
    holds blocks, and `finish`.
    """

    def __init__(self, pools: PoolPair, tables: dict[int, tuple[BlockTable, ...]], admission: BlockAdmission):
        self._pools = pools
        self._tables = tables
        self._admission = admission
        self._places: tuple[dict[int, int], dict[int, int]] = ({}, {})  # old id -> new id, device and host
        self._root = admission.root

    def take(self) -> BlockSpaceImage:
        """The blocks that sequences hold, and those that are only cached."""
        device, host = self._pools.device, self._pools.host
        return BlockSpaceImage(device.num_blocks, self._admission.root, _pool_image(device), _pool_image(host))

    def take_findable(self) -> BlockSpaceImage:
        """The blocks that later requests can find, as if no sequence held one."""
        device, host = self._pools.device, self._pools.host
        return BlockSpaceImage(device.num_blocks, self._admission.root, _findable_image(device), _findable_image(host))

    def tables_of(self, seq: Sequence) -> list[TableImage]:
        """The sequence's tables by cache group; empty if it has not been admitted yet.

        One of several that have been admitted anew may hold no block: with windows it gets its first with its first
        token.
        """
        tables = self._tables.get(seq.seq_id, ())
        return [table.image(is_on_host=table.allocator is self._pools.host) for table in tables]

    def begin(self, image: BlockSpaceImage, device: Collection[int], host: Collection[int]) -> UsedBlocks:
        """Give the blocks of these numbers a place. No sequence holds blocks here; cached contents are forgotten.

        Returns the new numbers of all blocks of the image, in its order; negative: it does not come back.
        """
        self._pools.reset_cache()
        self._root = self._admission.root
        self._admission.root = image.root
        found = []
        for pool, of_pool, kept in ((self._pools.device, image.device, device), (self._pools.host, image.host, host)):
            found.append({block_id: pool.allocate() for block_id in of_pool.block_ids if block_id in kept})
        self._places = found[0], found[1]
        return UsedBlocks(
            [self._places[0].get(block_id, -1) for block_id in image.device.block_ids],
            [self._places[1].get(block_id, -1) for block_id in image.host.block_ids],
        )

    def cancel(self) -> None:
        """Free all places."""
        self._admission.root = self._root
        self._release()

    def adopt(self, seq: Sequence, images: Seq[TableImage]) -> None:
        """Give the sequence the blocks of its tables; all of them have a place."""
        tables = self._admission.empty_tables(seq)
        for table, image in zip(tables, images, strict=True):
            pool = self._pools.host if image.is_on_host else self._pools.device
            places = self._places[image.is_on_host]
            block_ids = [NULL_BLOCK if each < 0 else places[each] for each in image.block_ids]
            for block_id in block_ids:
                if block_id != NULL_BLOCK:
                    pool.share(block_id)
            table.restore(image, pool, block_ids, seq.token_ids)
        self._tables[seq.seq_id] = tables

    def finish(self, image: BlockSpaceImage) -> None:
        """Make the contents findable again. Blocks that no sequence holds become free, as cached ones."""
        sides = ((self._pools.device, image.device), (self._pools.host, image.host))
        for (pool, of_pool), places in zip(sides, self._places, strict=True):
            for block_id, content in zip(of_pool.block_ids, of_pool.contents, strict=True):
                if content and block_id in places:
                    pool.promote(places[block_id], content)
        self._release()

    def _release(self) -> None:
        """Give back the references that `begin` has taken, in the image's order: the last is reused last."""
        for pool, places in zip((self._pools.device, self._pools.host), self._places, strict=True):
            pool.release(places.values())
        self._places = {}, {}


def _pool_image(pool: BlockAllocator) -> PoolImage:
    held, cached = _held(pool), _cached(pool)
    block_ids = held + cached
    return PoolImage(block_ids, [pool.content(block_id) or b"" for block_id in block_ids], len(held))


def _findable_image(pool: BlockAllocator) -> PoolImage:
    """Blocks that sequences hold are those used last."""
    contents = {block_id: pool.content(block_id) for block_id in _cached(pool) + _held(pool)}
    found = {block_id: content for block_id, content in contents.items() if content is not None}
    return PoolImage(list(found), list(found.values()), 0)


def _held(pool: BlockAllocator) -> list[int]:
    return [block_id for block_id in range(pool.num_blocks) if pool.ref_count(block_id)]


def _cached(pool: BlockAllocator) -> list[int]:
    return [block_id for block_id in _free_in_order(pool) if pool.content(block_id) is not None]


def _free_in_order(pool: BlockAllocator) -> Iterable[int]:
    """The free blocks, the next to be reused first."""
    return pool.next_free(pool.num_free)
