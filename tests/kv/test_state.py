"""Blocks of recurrent states: held from the first token on, copied at forks, found where a snapshot was kept."""

import random

import pytest
from kit.sched.groups import compute, make_group

from lullm.kv.admission import AllocStatus
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.cache_group import CacheGroup
from lullm.kv.state import snapshots
from lullm.types.layer_kind import FullAttention, RecurrentState
from lullm.types.sequence import Sequence

STATE = CacheGroup(RecurrentState(((3,),)), (1,), 3)
GROUPS = (CacheGroup(FullAttention(), (0,)), STATE)


def make_space(num_blocks=40, num_host_blocks=0, enable_prefix_caching=True):
    return BlockSpaceManager(num_blocks, 4, 0.0, enable_prefix_caching, num_host_blocks=num_host_blocks, groups=GROUPS)


def compute_all(space, group, index=0):
    """All tokens of a sequence in as few steps as the borders allow; the blocks copied, step by step."""
    seq, copies = group.seqs[index], []
    while seq.num_uncomputed_tokens:
        space.merge_duplicates()
        num_tokens = space.num_until_snapshot(group, seq, seq.num_uncomputed_tokens)
        copies.append(space.append_slots(group, seq, num_tokens)[1])
        space.take_cache_moves()
        space.check_conservation()
    space.merge_duplicates()
    return copies


def state_of(space, seq):
    return space.block_ids(seq)[1].tolist()


def test_a_state_takes_the_same_blocks_at_any_length():
    space = make_space(enable_prefix_caching=False)
    group = make_group(list(range(30)))
    [seq] = group.seqs
    assert space.num_required_blocks(group) == 8 + 3
    space.allocate(group)
    held = state_of(space, seq)
    assert len(held) == 3 and space.num_used_blocks == 8 + 3
    assert compute_all(space, group) == [()], "in one step, since no state is to be kept"
    assert state_of(space, seq) == held
    seq.token_ids += range(10)
    compute(space, group, 10)
    assert state_of(space, seq) == held and space.num_used_blocks == 10 + 3
    space.free(seq)
    assert space.num_used_blocks == 0


def test_a_fork_gets_its_state_when_one_of_the_two_moves_on():
    space = make_space(enable_prefix_caching=False)
    group = make_group(list(range(8)))
    [parent] = group.seqs
    space.allocate(group)
    compute(space, group, 8)
    child = Sequence(1, 1, list(range(8)), 8, num_computed_tokens=8)
    space.fork(parent, child)
    group.add(child)
    for seq in group.seqs:
        seq.token_ids.append(7)
    shared = state_of(space, parent)
    assert state_of(space, child) == shared and space.num_used_blocks == 2 + 3
    assert space._num_touched(group.seqs) == 2 + 3
    _, copies = space.append_slots(group, parent, num_tokens=1)
    assert [source for source, _ in copies] == shared and [own for _, own in copies] == state_of(space, parent)
    assert space.append_slots(group, child, num_tokens=1)[1] == () and state_of(space, child) == shared
    space.check_conservation()


def test_a_prompt_is_found_behind_its_last_full_block():
    space = make_space()
    tokens = list(range(22))
    first = make_group(tokens)
    space.allocate(first)
    copies = compute_all(space, first)
    assert [len(pairs) for pairs in copies] == [0, 3], "20 tokens, and 2 more from a copy of the state"
    kept = [source for source, _ in copies[1]]
    for first_id, is_there in ((10, True), (20, False)):
        second = make_group([*tokens[:21], 7], first_id=first_id)
        assert space.can_allocate(second) is AllocStatus.OK
        assert space.allocate(second) == 20
        [seq] = second.seqs
        assert state_of(space, seq) == kept
        assert [source for source, _ in space.append_slots(second, seq, 2)[1]] == kept, "what is kept stays"
        space.take_cache_moves()
        if is_there:
            space.free(first.seqs[0])
        space.free(seq)
        space.check_conservation()


def test_a_prefix_without_a_state_is_computed_again():
    space = make_space()
    tokens = list(range(22))
    first = make_group(tokens)
    space.allocate(first)
    compute_all(space, first)
    # All blocks of 16 tokens have their keys; the state is that behind 20.
    assert space.allocate(make_group([*tokens[:19], 77, 78, 79], first_id=10)) == 0


def test_a_state_is_found_from_the_next_plan_on():
    """A plan copies before it computes: in the plan of its own step the state is not there yet."""
    space = make_space()
    tokens = list(range(9))
    first, second = make_group(tokens), make_group(tokens, first_id=10)
    space.allocate(first)
    space.append_slots(first, first.seqs[0], space.num_until_snapshot(first, first.seqs[0], 9))
    assert space._admission.find_cached(second).num_blocks == 0
    space.merge_duplicates()
    assert space._admission.find_cached(second).num_blocks == 2


def test_one_snapshot_each_interval(monkeypatch):
    monkeypatch.setattr(snapshots, "LEAST_INTERVAL", 8)
    space = make_space(80)
    tokens = list(range(50))
    group = make_group(tokens)
    space.allocate(group)
    copies = compute_all(space, group)
    # A state takes as many blocks as 12 tokens.
    assert [len(pairs) for pairs in copies] == [0, 3, 3, 3, 3]
    space.free(group.seqs[0])
    found = [
        space._admission.find_cached(make_group(tokens[:end] + [99], first_id=100 + end)).num_blocks
        for end in range(50)
    ]
    assert found == [max(b for b in (0, 3, 6, 9, 12) if 4 * b <= end) for end in range(50)]


def test_a_snapshot_is_given_up_where_there_is_no_room_for_two_states():
    space = make_space(6 + 3 + 5)
    group = make_group(list(range(22)))
    space.allocate(group)
    before = state_of(space, group.seqs[0])
    assert compute_all(space, group) == [(), ()] and state_of(space, group.seqs[0]) == before
    assert space._admission.find_cached(make_group(list(range(22)), first_id=10)).num_blocks == 0
    assert all(space._device.content(block_id) is None for block_id in before)


def test_what_is_left_of_an_evicted_snapshot_is_replaced():
    space = make_space()
    tokens = list(range(22))
    first = make_group(tokens)
    space.allocate(first)
    [_, copies] = compute_all(space, first)
    space.free(first.seqs[0])
    gone = copies[1][0]
    space._device.forget(gone)
    second = make_group(tokens, first_id=10)
    assert space.allocate(second) == 0, "a part of a state is none"
    compute_all(space, second)
    assert space._admission.find_cached(make_group(tokens, first_id=20)).num_blocks == 5
    space.check_conservation()


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_snapshot_comes_back_from_the_host(is_whole):
    space = make_space(14, num_host_blocks=30)
    tokens = list(range(18))
    first = make_group(tokens)
    space.allocate(first)
    compute_all(space, first)
    space.free(first.seqs[0])
    other = make_group(list(range(100, 140 if is_whole else 121)), first_id=10)
    space.allocate(other)  # takes what was cached
    space.take_cache_moves()
    space.free(other.seqs[0])
    second = make_group(tokens, first_id=20)
    assert space.allocate(second) == 16
    moved_in = space.take_cache_moves()[1]
    assert len(moved_in) == 4 + 3 if is_whole else 0 < len(moved_in) < 4 + 3
    assert space.prefix_cache.host_hits > 0
    compute(space, second, 2)


def test_states_swap_with_their_sequences():
    space = make_space(num_host_blocks=20)
    group = make_group(list(range(22)))
    [seq] = group.seqs
    space.allocate(group)
    compute_all(space, group)
    assert len(space.swap_out(group)) == 6 + 3 and space.num_used_blocks == 0
    assert len(state_of(space, seq)) == 3
    assert space.can_swap_in(group) is AllocStatus.OK
    # The full blocks are still on the device; the state has moved on since its snapshot.
    assert len(space.swap_in(group)) == 1 + 3
    space.take_cache_moves()
    space.check_conservation()
    seq.token_ids.append(1)
    compute(space, group, 1)


def test_groups_that_come_back_share_nothing():
    """The leader's state passes by the border where the others would begin."""
    space = make_space(enable_prefix_caching=False)
    prompt = list(range(22))
    group = make_group(prompt + [1], prompt + [2, 2], prompt_len=22)
    assert space.num_required_blocks(group) == 2 * (6 + 3)
    space.allocate(group)
    assert [seq.num_computed_tokens for seq in group.seqs] == [0, 0]
    tables = [set(ids.tolist()) for seq in group.seqs for ids in space.block_ids(seq)]
    assert sum(map(len, tables)) == len(set().union(*tables)) == 18


def test_hits_of_random_prompts_have_their_states():
    rng = random.Random(0)
    space, known, hits = make_space(60), {}, 0
    for number in range(300):
        tokens = [rng.randrange(2) for _ in range(rng.randrange(1, 30))]
        group = make_group(tokens, first_id=number)
        found = space.allocate(group)
        hits += found > 0
        if found:
            assert known[tuple(tokens[:found])] is True
        compute_all(space, group)
        last = (len(tokens) - 1) // 4 * 4
        known[tuple(tokens[:last])] = True
        space.free(group.seqs[0])
        space.check_conservation()
    assert hits > 20
