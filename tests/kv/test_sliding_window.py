"""Sliding windows: which blocks a sequence holds, what the cache still finds, sharing and swapping with gaps."""

import pytest
from kit.sched.groups import compute, make_group

from lullm.kv.admission import AllocStatus
from lullm.kv.allocator import PrefixCachingBlockAllocator
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.block_table import NULL_BLOCK, BlockTable
from lullm.kv.cache_group import ONE_GROUP, CacheGroup
from lullm.kv.hashing import BlockHashes
from lullm.kv.prefix import find_prefix
from lullm.types.layer_kind import SlidingWindow
from lullm.types.sequence import Sequence


def windowed(window: int) -> tuple[CacheGroup, ...]:
    return (CacheGroup(SlidingWindow(window), (0,)),)


@pytest.mark.parametrize("window", range(1, 14))
@pytest.mark.parametrize("block_size", [1, 2, 4, 5])
def test_the_blocks_of_the_window_are_enough_and_no_more(window, block_size):
    most = 0
    [group] = windowed(window)
    for num_computed in range(60):
        behind = group.num_blocks_behind(num_computed, block_size)
        first_seen = max(num_computed - window + 1, 0)
        assert behind == first_seen // block_size
        most = max(most, num_computed // block_size + 1 - behind)
    assert most == group.num_held_blocks(60, block_size) <= window / block_size + 2
    [full] = ONE_GROUP
    assert full.num_blocks_behind(60, block_size) == 0 and full.num_held_blocks(60, block_size) == 60


def test_blocks_are_freed_as_the_window_moves():
    space = BlockSpaceManager(4, 4, watermark=0.0, groups=windowed(6))
    group = make_group(list(range(50)))
    (seq,) = group.seqs
    assert space.can_allocate(group) is AllocStatus.OK, "50 tokens are more than the pool of 16, the window is not"
    assert space.allocate(group) == 0 and space.num_used_blocks == 0
    assert space.num_appendable(seq, seq.num_uncomputed_tokens) == 16
    compute(space, group, 16)
    assert space.block_ids(seq)[0].tolist()[:2] == [NULL_BLOCK] * 2 and space.num_used_blocks == 2
    while seq.num_uncomputed_tokens:
        assert space.can_append_slots([seq])
        compute(space, group, space.num_appendable(seq, seq.num_uncomputed_tokens))
        assert space.num_used_blocks <= 3
    space.free(seq)
    assert space.num_used_blocks == 0


def test_a_pool_smaller_than_the_window_is_never_enough():
    assert BlockSpaceManager(2, 4, groups=windowed(6)).can_allocate(make_group(list(range(50)))) is AllocStatus.NEVER
    assert BlockSpaceManager(2, 4, groups=windowed(6)).can_allocate(make_group(list(range(8)))) is AllocStatus.OK


def test_freed_blocks_of_a_running_sequence_are_found():
    space = BlockSpaceManager(16, 4, groups=windowed(6))
    first = make_group(list(range(40)))
    space.allocate(first)
    compute(space, first, 40)
    assert space.num_used_blocks == 2
    second = make_group(list(range(18)), first_id=1)
    assert space.can_allocate(second) is AllocStatus.OK
    assert space.allocate(second) == 16
    # The token at 16 sees 11..16, so blocks 2 and 3.
    assert [b == NULL_BLOCK for b in space.block_ids(second.seqs[0])[0]] == [True, True, False, False]
    space.check_conservation()


def test_a_hit_needs_only_the_blocks_in_the_window_before_its_end():
    allocator = PrefixCachingBlockAllocator(8)
    table = BlockTable(allocator, BlockHashes(2))
    tokens = list(range(17))
    table.allocate(16)
    table.promote(tokens, 16)
    ids = table.block_ids.tolist()
    table.drop(3)
    for _ in range(3):
        allocator.allocate()  # reuses the three that were dropped

    def find(num_tokens, window=None):
        groups = ONE_GROUP if window is None else windowed(window)
        prefix = find_prefix(BlockHashes(2), tokens[:num_tokens], groups, [allocator])
        return prefix.num_skipped[0], [block_id for _, block_id in prefix.hits[0]]

    assert find(17) == (0, [])
    assert find(17, 5) == (6, ids[6:])
    assert find(11, 5) == (3, ids[3:5])
    assert find(9, 5) == (0, []), "block 2 is gone"


def test_a_fork_shares_what_is_left():
    space = BlockSpaceManager(16, 4, enable_prefix_caching=False, groups=windowed(6))
    group = make_group(list(range(30)))
    (parent,) = group.seqs
    space.allocate(group)
    compute(space, group, 30)
    child = Sequence(1, 1, list(range(30)), 30, num_computed_tokens=30)
    space.fork(parent, child)
    group.add(child)
    for seq in group.seqs:
        seq.token_ids.append(7)
    assert space.num_used_blocks == 2 and space.can_append_slots(group.seqs)
    assert len(space.append_slots(group, parent, num_tokens=1)[1]) == 1
    assert space.append_slots(group, child, num_tokens=1)[1] == ()
    assert space.num_held_blocks(group) == 3
    space.check_conservation()


def test_swapping_moves_the_window_only():
    space = BlockSpaceManager(16, 4, num_host_blocks=4, enable_prefix_caching=False, groups=windowed(6))
    group = make_group(list(range(30)))
    (seq,) = group.seqs
    space.allocate(group)
    compute(space, group, 29)
    assert space.can_swap_out(group)
    assert len(space.swap_out(group)) == 2
    space.check_conservation()
    assert (space.num_used_blocks, space.num_used_host_blocks) == (0, 2)
    assert space.can_swap_in(group) is AllocStatus.OK
    assert len(space.swap_in(group)) == 2
    space.take_cache_moves()
    assert [b == NULL_BLOCK for b in space.block_ids(seq)[0]] == [True] * 6 + [False] * 2
    compute(space, group, 1)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_returning_group_shares_the_prompt_once_its_leader_is_there(enable_prefix_caching):
    space = BlockSpaceManager(8, 4, enable_prefix_caching=enable_prefix_caching, groups=windowed(6))
    prompt = list(range(22))
    group = make_group(prompt + [1, 1, 1], prompt + [2, 2, 2, 2], prompt_len=22)
    leader, other = group.seqs
    assert space.num_required_blocks(group) == 3 + 2
    space.allocate(group)
    assert other.num_computed_tokens == 20
    compute(space, group, 8)
    compute(space, group, 8)
    space.append_slots(group, leader, num_tokens=6)
    for _ in range(2):
        space.share_prompt(leader, other)
        assert [b == NULL_BLOCK for b in space.block_ids(other)[0]] == [True] * 3 + [False] * 2
        assert space.block_ids(other)[0][3:5] == space.block_ids(leader)[0][3:5]
    space.slide(leader)
    space.check_conservation()
    compute(space, group, 6, index=1)
    assert space.block_ids(other)[0][5] != space.block_ids(leader)[0][5]
    for seq in group.seqs:
        space.free(seq)
    assert space.num_used_blocks == 0
