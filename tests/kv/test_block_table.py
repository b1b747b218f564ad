"""BlockTable: growth on demand, forks with copy-on-write, hashes and promotion."""

from lullm.kv.allocator import BlockAllocator, NaiveBlockAllocator, PrefixCachingBlockAllocator
from lullm.kv.block_table import BlockTable
from lullm.kv.cache_group import ONE_GROUP
from lullm.kv.growth import common_len
from lullm.kv.hashing import ROOT_HASH, BlockHashes, chain_hash, salted_root
from lullm.kv.prefix import find_prefix
from lullm.types.packed import unpack


def test_blocks_come_on_demand():
    allocator = NaiveBlockAllocator(8)
    table = BlockTable(allocator, BlockHashes(4))
    table.allocate(5)
    assert table.block_ids.tolist() == [0, 1]
    assert table.num_fresh_blocks(8) == 0
    assert table.append_slots(5, 8) == ()
    assert table.num_fresh_blocks(9) == 1
    table.append_slots(8, 9)
    assert table.block_ids.tolist() == [0, 1, 2]
    table.free()
    assert allocator.num_free == 8


def test_the_ids_of_a_plan_are_packed_once_for_each_block():
    table = BlockTable(NaiveBlockAllocator(8), BlockHashes(4))
    table.allocate(5)
    first = table.packed_ids
    table.append_slots(5, 8)
    assert table.packed_ids is first and table.block_ids.tolist() == unpack(first)
    table.append_slots(8, 9)
    assert unpack(table.packed_ids) == [0, 1, 2] and unpack(first) == [0, 1], "a plan keeps what it was given"


def test_a_fork_copies_only_the_partly_filled_block_and_only_when_shared():
    allocator = NaiveBlockAllocator(8)
    parent = BlockTable(allocator, BlockHashes(4))
    parent.allocate(6)
    child = parent.fork(BlockHashes(4))
    assert child.block_ids == parent.block_ids
    assert parent.block_to_copy(6) == 1 and parent.num_fresh_blocks(7) == 0
    assert parent.append_slots(6, 7) == ((1, 2),)
    assert parent.block_ids.tolist() == [0, 2]
    assert child.append_slots(6, 7) == (), "the last holder writes in place"
    assert allocator.ref_count(0) == 2
    child.free()
    parent.free()
    assert allocator.num_free == 8


def test_a_fork_at_a_block_boundary_copies_nothing():
    allocator = NaiveBlockAllocator(8)
    parent = BlockTable(allocator, BlockHashes(4))
    parent.allocate(8)
    child = parent.fork(BlockHashes(4))
    assert parent.append_slots(8, 9) == () and child.append_slots(8, 9) == ()
    assert parent.block_ids[:2] == child.block_ids[:2]
    assert parent.block_ids[2] != child.block_ids[2]


def test_hashes_are_chained():
    assert chain_hash(chain_hash(ROOT_HASH, [1, 2]), [3, 4]) != chain_hash(chain_hash(ROOT_HASH, [9, 2]), [3, 4])
    assert chain_hash(ROOT_HASH, [1, 2]) == chain_hash(ROOT_HASH, (1, 2))


def found_ids(allocator: BlockAllocator, tokens: list[int], salt: bytes = b"") -> list[int]:
    prefix = find_prefix(BlockHashes(2, salted_root(salt)), tokens, ONE_GROUP, [allocator])
    [num_skipped], [hits] = prefix.num_skipped, prefix.hits
    assert num_skipped == 0 and len(hits) == prefix.num_blocks
    return [block_id for _, block_id in hits]


def test_the_cached_prefix_ends_at_the_first_miss_and_before_the_last_token():
    allocator = PrefixCachingBlockAllocator(8)
    table = BlockTable(allocator, BlockHashes(2))
    tokens = [1, 2, 3, 4, 5, 6]
    table.allocate(6)
    table.promote(tokens, 6)
    assert found_ids(allocator, [1, 2, 3, 4, 5, 6]) == table.block_ids[:2].tolist()
    assert found_ids(allocator, [1, 2, 3, 4, 5, 6, 7]) == table.block_ids.tolist()
    assert found_ids(allocator, [1, 2, 9, 4, 5, 6, 7]) == table.block_ids[:1].tolist()
    assert found_ids(allocator, [1, 2]) == []


def test_only_computed_blocks_become_findable():
    allocator = PrefixCachingBlockAllocator(8)
    table = BlockTable(allocator, BlockHashes(2))
    tokens = [1, 2, 3, 4, 5]
    table.allocate(5)
    table.promote(tokens, 3)
    assert len(allocator.cached_ids()) == 1
    table.promote(tokens, 5)
    assert len(allocator.cached_ids()) == 2


def test_an_equal_block_is_exchanged_for_the_first_one():
    allocator = PrefixCachingBlockAllocator(8)
    first, second = BlockTable(allocator, BlockHashes(2)), BlockTable(allocator, BlockHashes(2))
    duplicates = []
    for table in (first, second):
        table.allocate(4)
        duplicates.append(table.promote([5, 6, 7, 8], 4))
    assert duplicates == [[], [0, 1]]
    second.exchange(0, first.block_ids[0])
    assert second.has(0, first.block_ids[0]) and not second.has(1, first.block_ids[1]) and not second.has(2, 0)
    assert allocator.ref_count(first.block_ids[0]) == 2 and allocator.num_free == 5
    first.free()
    second.free()
    assert allocator.num_free == 8


def test_a_salt_separates_contents():
    allocator = PrefixCachingBlockAllocator(8)
    table = BlockTable(allocator, BlockHashes(2, salted_root(b"weights 1")))
    table.allocate(3)
    table.promote([1, 2, 3], 2)
    assert found_ids(allocator, [1, 2, 3]) == []
    assert found_ids(allocator, [1, 2, 3], b"weights 1") == [0]


def test_free_blocks_are_shared_out_to_the_shorter_tables():
    allocator = NaiveBlockAllocator(128)

    def tables(*lens):
        made = [BlockTable(allocator, BlockHashes(4)) for _ in lens]
        for table, length in zip(made, lens, strict=True):
            table.allocate(4 * length)
        return made

    assert common_len(tables(3), 5) == 8
    assert common_len(tables(10, 2, 2), 5) == 4
    assert common_len(tables(10, 2, 2), 16) == 10
    assert common_len(tables(10, 2, 2), 18) == 10
    assert common_len(tables(10, 2, 2), 19) == 11
    assert common_len(tables(5, 5), 0) == 5
