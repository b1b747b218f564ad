"""Several cache groups over one pool: what a sequence holds in each, what the cache finds for all, moves and copies."""

import random

import pytest
from kit.sched.groups import compute, make_group

from lullm.kv.admission import AllocStatus
from lullm.kv.allocator import PrefixCachingBlockAllocator
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.block_table import NULL_BLOCK
from lullm.kv.cache_group import CacheGroup
from lullm.kv.hashing import BlockHashes, group_suffix
from lullm.kv.prefix import find_prefix
from lullm.types.layer_kind import FullAttention, SlidingWindow
from lullm.types.sequence import Sequence

FULL = CacheGroup(FullAttention(), (0,))
GROUPS = (FULL, CacheGroup(SlidingWindow(6), (1,)), CacheGroup(SlidingWindow(6), (2,)))


def held(space: BlockSpaceManager, seq: Sequence) -> list[int]:
    """Blocks that the sequence holds, by group."""
    return [sum(block_id != NULL_BLOCK for block_id in ids) for ids in space.block_ids(seq)]


def test_full_groups_get_all_blocks_at_admission_and_window_groups_step_by_step():
    space = BlockSpaceManager(20, 4, groups=GROUPS)
    group = make_group(list(range(40)))
    [seq] = group.seqs
    assert space.num_required_blocks(group) == 10 + 2 * 3
    space.allocate(group)
    assert held(space, seq) == [10, 0, 0]
    assert space.num_appendable(seq, seq.num_uncomputed_tokens) == 5 * 4, "ten free blocks for two groups"
    compute(space, group, 20)
    assert held(space, seq) == [10, 2, 2]
    assert [ids.tolist()[:3] for ids in space.block_ids(seq)[1:]] == [[NULL_BLOCK] * 3] * 2
    assert space.num_appendable(seq, seq.num_uncomputed_tokens) == 3 * 4
    compute(space, group, 12)
    compute(space, group, 8)
    assert held(space, seq) == [10, 2, 2] and space.num_used_blocks == 14
    space.free(seq)
    assert space.num_used_blocks == 0


def test_a_long_sequence_holds_fewer_blocks_than_with_full_attention_everywhere():
    def num_used(groups):
        space = BlockSpaceManager(2000, 16, groups=groups)
        group = make_group(list(range(4000)))
        space.allocate(group)
        while group.seqs[0].num_uncomputed_tokens:
            compute(space, group, 250)
        return space.num_used_blocks

    # As in Gemma 3 1B: 1 group of full attention, 6 with a window of 512.
    windows = [CacheGroup(SlidingWindow(512), (i,)) for i in range(1, 7)]
    assert num_used([FULL, *windows]) == 250 + 6 * 32
    assert num_used([FULL] * 7) == 7 * 250


def test_equal_tokens_of_two_groups_are_different_contents():
    space = BlockSpaceManager(32, 4, groups=GROUPS)
    first, second = make_group(list(range(9))), make_group(list(range(9)), first_id=10)
    space.allocate(first)
    compute(space, first, 9)
    assert space.allocate(second) == 8
    ids = [[ids[i] for ids in space.block_ids(second.seqs[0])] for i in range(2)]
    assert len(set(ids[1])) == 3
    assert ids[0][0] == space.block_ids(first.seqs[0])[0][0]
    assert ids[0][1:] == [NULL_BLOCK] * 2 or len(set(ids[0])) == 3
    space.check_conservation()


def evict(space: BlockSpaceManager, group: int, index: int, tokens: list[int]) -> None:
    """Take one block's content out of the cache; all its holders must have let go."""
    probe = make_group([*tokens, 0], first_id=1000)
    space.allocate(probe)  # nothing is computed: only the hashes are wanted
    pool, [table, *_] = space._device, [space._tables[1000][group]]
    block_id = pool.find(table.content(index))
    assert block_id is not None
    space.free(probe.seqs[0])
    assert pool.ref_count(block_id) == 0
    pool._evict(block_id)


@pytest.mark.parametrize(
    ("gone", "num_found"),
    [
        ([], 6),
        ([(0, 5)], 5),  # full attention lacks the last block
        ([(0, 2)], 2),
        ([(1, 5)], 5),
        ([(2, 5)], 5),
        ([(2, 4)], 4),  # of 6 blocks the window needs 4 and 5, of 5 blocks 3 and 4
        ([(1, 3)], 6),  # behind the window
        ([(1, 3), (2, 5)], 3),  # 6: group 2 lacks one; 5 and 4: group 1 does
        ([(1, 0), (1, 3), (0, 4)], 3),  # full attention leaves 4 at most; that needs block 3 of group 1
        ([(1, 1), (2, 3), (2, 4)], 1),  # 2 and 3 need block 1
    ],
)
def test_a_hit_is_the_longest_prefix_that_every_group_has(gone, num_found):
    tokens = list(range(24))
    space = BlockSpaceManager(64, 4, groups=GROUPS)
    first = make_group([*tokens, 7])
    space.allocate(first)
    compute(space, first, 25)
    space.free(first.seqs[0])
    for group, index in gone:
        evict(space, group, index, tokens)
    second = make_group([*tokens, 8], first_id=10)
    [seq] = second.seqs
    assert space.allocate(second) == num_found * 4
    for own, cache in zip(space.block_ids(seq), GROUPS, strict=True):
        first_needed = cache.num_blocks_behind(num_found * 4, 4)
        assert [block_id == NULL_BLOCK for block_id in own[:num_found]] == [i < first_needed for i in range(num_found)]
    assert space.num_appendable(seq, seq.num_uncomputed_tokens) == seq.num_uncomputed_tokens
    compute(space, second, seq.num_uncomputed_tokens)


def test_all_hits_are_held_before_the_first_fresh_block_is_taken():
    # The pool has just the blocks of the prompt: every fresh block could evict a hit of another group.
    space = BlockSpaceManager(3 + 2 * 3, 4, watermark=0.0, groups=GROUPS)
    tokens = list(range(12))
    first = make_group(tokens)
    space.allocate(first)
    compute(space, first, 12)
    space.free(first.seqs[0])
    second = make_group(tokens, first_id=10)
    assert space.can_allocate(second) is AllocStatus.OK
    assert space.allocate(second) == 8
    space.check_conservation()
    compute(space, second, 4)


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_a_fork_copies_the_partly_filled_block_of_every_group(enable_prefix_caching):
    space = BlockSpaceManager(32, 4, enable_prefix_caching=enable_prefix_caching, groups=GROUPS)
    group = make_group(list(range(30)))
    [parent] = group.seqs
    space.allocate(group)
    compute(space, group, 30)
    child = Sequence(1, 1, list(range(30)), 30, num_computed_tokens=30)
    space.fork(parent, child)
    group.add(child)
    for seq in group.seqs:
        seq.token_ids.append(7)
    assert space.num_used_blocks == space.num_held_blocks(group) == 8 + 2 + 2
    _, copies = space.append_slots(group, parent, num_tokens=1)
    assert len(copies) == 3 and space.append_slots(group, child, num_tokens=1)[1] == ()
    assert [source for source, _ in copies] == [ids[7] for ids in space.block_ids(child)]
    assert [own for _, own in copies] == [ids[7] for ids in space.block_ids(parent)]
    space.check_conservation()


@pytest.mark.parametrize("enable_prefix_caching", [True, False])
def test_swapping_moves_the_blocks_of_every_group(enable_prefix_caching):
    space = BlockSpaceManager(32, 4, num_host_blocks=12, enable_prefix_caching=enable_prefix_caching, groups=GROUPS)
    group = make_group(list(range(30)))
    [seq] = group.seqs
    space.allocate(group)
    compute(space, group, 29)
    assert space.can_swap_out(group)
    assert len(space.swap_out(group)) == 8 + 2 + 2
    space.check_conservation()
    assert (space.num_used_blocks, space.num_used_host_blocks) == (0, 12)
    assert space.can_swap_in(group) is AllocStatus.OK
    # With a cache the full blocks are still on the device: 7 of full attention, 1 of each window.
    assert len(space.swap_in(group)) == (3 if enable_prefix_caching else 12)
    assert space.num_used_blocks == 12
    space.take_cache_moves()
    assert held(space, seq) == [8, 2, 2] and space.num_used_host_blocks == 0
    compute(space, group, 1)


def test_a_returning_group_shares_the_prompt_in_every_group():
    space = BlockSpaceManager(32, 4, enable_prefix_caching=False, groups=GROUPS)
    prompt = list(range(22))
    group = make_group(prompt + [1, 1, 1], prompt + [2, 2, 2, 2], prompt_len=22)
    leader, other = group.seqs
    assert space.num_required_blocks(group) == (7 + 2) + 2 * (3 + 2)
    space.allocate(group)
    assert other.num_computed_tokens == 20 and held(space, other) == [7, 0, 0]
    compute(space, group, 16)
    space.append_slots(group, leader, num_tokens=6)
    for _ in range(2):
        space.share_prompt(leader, other)
        assert held(space, other) == [7, 2, 2]
        for own, theirs in zip(space.block_ids(other), space.block_ids(leader), strict=True):
            assert own[3:5] == theirs[3:5]
    space.slide(leader)
    space.check_conservation()
    compute(space, group, 6, index=1)
    for seq in group.seqs:
        space.free(seq)
    assert space.num_used_blocks == 0


def test_a_snapshot_shows_the_blocks_of_all_groups():
    space = BlockSpaceManager(32, 4, groups=GROUPS)
    group = make_group(list(range(30)))
    space.allocate(group)
    compute(space, group, 30)
    pool = space.snapshot([group]).device
    assert pool.count("used") == 12
    assert pool.num_tokens == 30 + 2 * (30 - 24)
    assert pool.count("cached") == 2 * 6, "those that left the window"


def test_num_appendable_is_the_most_that_fits():
    rng = random.Random(1)
    tight = 0
    for _ in range(300):
        space = BlockSpaceManager(rng.randrange(16, 40), 4, watermark=0.0, groups=GROUPS)
        group = make_group([rng.randrange(2) for _ in range(rng.randrange(1, 60))])
        [seq] = group.seqs
        if space.can_allocate(group) is not AllocStatus.OK:
            continue
        space.allocate(group)
        while seq.num_uncomputed_tokens:
            num = space.num_appendable(seq, seq.num_uncomputed_tokens)
            assert num > 0
            assert space._num_touched([seq], num_tokens=num) <= space._device.num_free
            if num < seq.num_uncomputed_tokens:
                tight += 1
                assert space._num_touched([seq], num_tokens=num + 1) > space._device.num_free
            compute(space, group, rng.randrange(1, num + 1))
    assert tight > 100


def has_all(held, groups, length):
    """Whether every group holds the blocks that a token behind `length` blocks sees."""
    return all(
        index in places
        for places, group in zip(held, groups, strict=True)
        for index in range(group.num_blocks_behind(4 * length, 4), length)
    )


@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6), (5, None, 13), (3, 6), (None, None, 1)])
def test_the_longest_prefix_of_random_caches(windows):
    """Against the definition: the greatest length of which every group has all blocks that the next token sees."""
    rng = random.Random(len(windows))
    kinds = [FullAttention() if window is None else SlidingWindow(window) for window in windows]
    groups = [CacheGroup(kind, (layer,)) for layer, kind in enumerate(kinds)]
    lens = set()
    for _ in range(400):
        num_blocks, share = rng.randrange(12), rng.choice([0.5, 0.8, 0.95])
        tokens = [rng.randrange(2) for _ in range(4 * num_blocks + rng.randrange(1, 4))]
        hashes = BlockHashes(4)
        hashes.extend(tokens, num_blocks)
        pools = [PrefixCachingBlockAllocator(64), PrefixCachingBlockAllocator(64)]
        held = []  # by group: block -> where it is
        for number in range(len(groups)):
            places = {}
            for index in range(num_blocks):
                for pool in reversed(pools):
                    if rng.random() < share / 1.5:
                        block_id = pool.allocate()
                        assert pool.promote(block_id, hashes[index] + group_suffix(number))
                        places[index] = pool, block_id
            held.append(places)

        most = (len(tokens) - 1) // 4
        expected = max(length for length in range(most + 1) if has_all(held, groups, length))
        found = find_prefix(BlockHashes(4), tokens, groups, pools)
        assert found.num_blocks == expected
        for own, first, places in zip(found.hits, found.num_skipped, held, strict=True):
            assert list(own) == [places[index] for index in range(first, expected)]
        lens.add(expected)
    assert len(lens) > 4
