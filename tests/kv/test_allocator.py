"""Allocators: counts, sharing, the free queue's order, the content index."""

import random

import pytest

from lullm.kv.allocator import FreeQueue, NaiveBlockAllocator, PrefixCachingBlockAllocator


@pytest.mark.parametrize("kind", [NaiveBlockAllocator, PrefixCachingBlockAllocator])
def test_blocks_are_handed_out_left_to_right_and_come_back(kind):
    allocator = kind(4)
    blocks = [allocator.allocate() for _ in range(4)]
    assert blocks == [0, 1, 2, 3]
    assert allocator.num_free == 0
    allocator.share(2)
    allocator.release([2])
    assert allocator.num_free == 0
    allocator.release(blocks)
    assert allocator.num_free == 4
    assert sorted(allocator.allocate() for _ in range(4)) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [NaiveBlockAllocator, PrefixCachingBlockAllocator])
def test_random_traffic_keeps_counts(kind):
    rng = random.Random(0)
    allocator = kind(32)
    held: list[int] = []
    for round_ in range(20_000):
        action = rng.random()
        if action < 0.4 and allocator.num_free:
            block_id = allocator.allocate()
            assert block_id not in held
            held.append(block_id)
            if rng.random() < 0.5:
                allocator.promote(block_id, b"%d" % rng.randrange(64))
        elif action < 0.5 and held:
            block_id = rng.choice(held)
            allocator.share(block_id)
            held.append(block_id)
        elif action < 0.6:
            found = allocator.find(b"%d" % rng.randrange(64))
            if found is not None:
                allocator.share(found)
                held.append(found)
        elif held:
            allocator.release([held.pop(rng.randrange(len(held)))])
        if round_ % 100 == 0:
            assert all(allocator.ref_count(b) == held.count(b) for b in range(32))
            assert allocator.num_free == 32 - len(set(held))


def test_free_queue_removes_from_the_middle():
    queue = FreeQueue(5)
    queue.remove(2)
    queue.remove(0)
    queue.remove(4)
    assert list(queue) == [1, 3]
    queue.extend([2])
    assert [queue.popleft() for _ in range(3)] == [1, 3, 2]
    assert len(queue) == 0
    queue.extend([4])
    assert list(queue) == [4]


def test_a_freed_block_is_found_until_it_is_needed():
    allocator = PrefixCachingBlockAllocator(3)
    block_id = allocator.allocate()
    allocator.promote(block_id, b"x")
    allocator.release([block_id])
    assert allocator.find(b"x") == block_id
    assert allocator.num_free == 3
    others = [allocator.allocate(), allocator.allocate()]
    assert block_id not in others, "a cached block is the last to be reused"
    assert allocator.find(b"x") == block_id
    assert allocator.allocate() == block_id
    assert allocator.find(b"x") is None


def test_a_found_block_leaves_the_free_queue():
    allocator = PrefixCachingBlockAllocator(2)
    block_id = allocator.allocate()
    allocator.promote(block_id, b"x")
    allocator.release([block_id])
    allocator.share(allocator.find(b"x"))
    assert allocator.num_free == 1
    assert allocator.allocate() != block_id


def test_eviction_takes_the_tail_of_the_least_recently_used():
    allocator = PrefixCachingBlockAllocator(4)
    old = [allocator.allocate(), allocator.allocate()]
    new = [allocator.allocate(), allocator.allocate()]
    for block_id in old + new:
        allocator.promote(block_id, b"%d" % block_id)
    allocator.release(reversed(old))
    allocator.release(reversed(new))
    assert [allocator.allocate() for _ in range(4)] == [old[1], old[0], new[1], new[0]]


def test_equal_content_is_indexed_once():
    allocator = PrefixCachingBlockAllocator(2)
    first, second = allocator.allocate(), allocator.allocate()
    allocator.promote(first, b"x")
    allocator.promote(second, b"x")
    assert allocator.find(b"x") == first
    allocator.release([second])
    assert allocator.allocate() == second
    assert allocator.find(b"x") == first


def test_reset_cache_forgets_contents_but_not_owners():
    allocator = PrefixCachingBlockAllocator(2)
    block_id = allocator.allocate()
    allocator.promote(block_id, b"x")
    allocator.reset_cache()
    assert allocator.find(b"x") is None
    assert len(allocator.cached_ids()) == 0
    assert allocator.ref_count(block_id) == 1


def test_forgetting_what_nobody_holds():
    pool = PrefixCachingBlockAllocator(4)
    held, free = pool.allocate(), pool.allocate()
    assert pool.promote(held, b"held") and pool.promote(free, b"free")
    pool.release((free,))
    pool.forget_free()
    assert pool.find(b"held") == held and pool.find(b"free") is None
    assert pool.content(free) is None and pool.num_free == 3
    pool.release((held,))
    assert pool.find(b"held") == held
    pool.forget_free()
    assert pool.find(b"held") is None and not pool.cached_ids()


@pytest.mark.parametrize("kind", [NaiveBlockAllocator, PrefixCachingBlockAllocator])
def test_the_next_free_blocks_are_those_that_come(kind):
    allocator = kind(8)
    held = [allocator.allocate() for _ in range(5)]
    allocator.promote(held[1], b"kept")
    allocator.release(held[1:3])
    assert allocator.next_free(2) == allocator.next_free(8)[:2] and allocator.next_free(0) == []
    expected = allocator.next_free(99)
    assert [allocator.allocate() for _ in range(allocator.num_free)] == expected
    assert allocator.next_free(3) == []
