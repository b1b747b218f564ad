"""BlockSpaceManager: admission with a watermark, sharing inside a group, release."""

from lullm.kv.admission import AllocStatus
from lullm.kv.block_space import BlockSpaceManager
from lullm.types.outputs import RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus


def make_group(prompt: list[int], seq_id: int = 0, **params: object) -> SequenceGroup:
    request = GenerateRequest(str(seq_id), None, prompt, SamplingParams(**params), 0, 0.0)
    return SequenceGroup(request, [Sequence(seq_id, 0, list(prompt), len(prompt))], RequestMetrics(0.0))


def test_ok_later_never():
    space = BlockSpaceManager(10, 4, watermark=0.2)
    assert space.can_allocate(make_group([1] * 40)) is AllocStatus.OK, "the watermark does not bind an idle pool"
    assert space.can_allocate(make_group([1] * 41)) is AllocStatus.NEVER
    first = make_group(list(range(16)), 0)
    space.allocate(first)
    assert space.can_allocate(make_group([99] * 17, 1)) is AllocStatus.LATER
    assert space.can_allocate(make_group([99] * 16, 2)) is AllocStatus.OK
    space.free(first.seqs[0])
    assert space.num_used_blocks == 0
    space.check_conservation()


def test_a_second_request_shares_the_cached_prefix():
    space = BlockSpaceManager(8, 4)
    prompt = list(range(10))
    first, second = make_group(prompt, 0), make_group(prompt, 1)
    assert space.allocate(first) == 0
    first.seqs[0].num_computed_tokens = 10
    space.promote(first, first.seqs[0])
    assert space.allocate(second) == 8
    assert space.num_used_blocks == 4
    assert (space.prefix_cache.queries, space.prefix_cache.hits) == (20, 8)
    space.check_conservation()


def test_requests_of_other_salts_share_nothing():
    space = BlockSpaceManager(16, 4)
    prompt = list(range(10))
    groups = [make_group(prompt, seq_id) for seq_id in range(4)]
    found = []
    for group, salt in zip(groups, ("", "a", "b", "a"), strict=True):
        group.seqs[0].cache_salt = salt
        found.append(space.allocate(group))
        group.seqs[0].num_computed_tokens = 10
        space.promote(group, group.seqs[0])
    assert found == [0, 0, 0, 8]
    space.check_conservation()


def test_new_weights_keep_the_salt_of_a_request_that_waits():
    space = BlockSpaceManager(16, 4)
    salted, plain = make_group(list(range(10)), 0), make_group(list(range(10)), 1)
    salted.seqs[0].cache_salt = "a"
    assert space.can_allocate(salted) is AllocStatus.OK, "hashed under the old weights"
    space.reset_prefix_cache(b"version 2")
    space.allocate(plain)
    plain.seqs[0].num_computed_tokens = 10
    space.promote(plain, plain.seqs[0])
    assert space.allocate(salted) == 0


def test_prompt_logprobs_skip_the_cache():
    space = BlockSpaceManager(8, 4)
    prompt = list(range(10))
    first, second = make_group(prompt, 0), make_group(prompt, 1, prompt_logprobs=1)
    space.allocate(first)
    first.seqs[0].num_computed_tokens = 10
    space.promote(first, first.seqs[0])
    assert space.allocate(second) == 0


def test_a_returning_group_shares_its_prompt_without_a_cache():
    space = BlockSpaceManager(16, 4, enable_prefix_caching=False)
    group = make_group(list(range(10)), 0, n=2)
    group.add(Sequence(1, 1, list(range(10)) + [7, 7, 7], 10))
    assert space.num_required_blocks(group) == 3 + 2
    space.allocate(group)
    leader, other = group.seqs
    assert space.block_ids(leader)[0][:2] == space.block_ids(other)[0][:2]
    assert space.num_used_blocks == 5
    assert other.num_computed_tokens == 8
    assert space.append_slots(group, leader, 10)[1] == (), "the leader fills the shared blocks for both"
    space.check_conservation()


def test_reset_prefix_cache():
    space = BlockSpaceManager(8, 4)
    first = make_group(list(range(10)), 0)
    space.allocate(first)
    first.seqs[0].num_computed_tokens = 10
    space.promote(first, first.seqs[0])
    space.reset_prefix_cache()
    assert space.allocate(make_group(list(range(10)), 1)) == 0


def test_siblings_merge_a_block_that_another_had_first():
    space = BlockSpaceManager(16, 4)
    prompt = list(range(10))
    first, second = make_group(prompt, 0), make_group(prompt, 1, n=3, prompt_logprobs=1)
    for group in (first, second):
        space.allocate(group)
        group.seqs[0].num_computed_tokens = 10
        space.promote(group, group.seqs[0])
    parent, *children = second.seqs + [Sequence(seq_id, seq_id, list(prompt), 10) for seq_id in (2, 3)]
    for child in children:
        child.num_computed_tokens = 10
        space.fork(parent, child)
        second.add(child)
    assert space.num_used_blocks == 6, "the step that is planned still writes the own blocks"
    space.merge_duplicates()
    assert space.num_used_blocks == 4, "two full blocks of the prompt for all, a last block for each group"
    assert {space.block_ids(seq)[0][:2].tobytes() for seq in (*first.seqs, *second.seqs)} == {
        space.block_ids(first.seqs[0])[0][:2].tobytes()
    }
    space.check_conservation()
    space.merge_duplicates()
    for seq in (*first.seqs, *second.seqs):
        space.free(seq)
    assert space.num_used_blocks == 0


def two_equal_blocks() -> tuple[BlockSpaceManager, SequenceGroup, SequenceGroup]:
    """Two groups that have computed the same block in the same step, in a pool of 4 blocks of 2 tokens."""
    space = BlockSpaceManager(4, 2)
    groups = [make_group([5, 6], seq_id, prompt_logprobs=1) for seq_id in (0, 1)]
    for group in groups:
        space.allocate(group)
        group.seqs[0].num_computed_tokens = 2
        space.promote(group, group.seqs[0])
    return space, groups[0], groups[1]


def test_of_two_equal_blocks_the_one_that_is_left_is_found():
    space, first, second = two_equal_blocks()
    space.free(first.seqs[0])
    for seq_id in (2, 3, 4):
        space.allocate(make_group([seq_id], seq_id))  # the last of these takes the free block and its content
    space.merge_duplicates()
    assert space.block_ids(second.seqs[0])[0].tolist() == [1]
    space.free(make_group([2], 2).seqs[0])
    assert space.allocate(make_group([5, 6, 7], 5)) == 2, "its content has taken the place of the first one's"
    space.check_conservation()


def test_an_ended_or_preempted_group_has_nothing_to_merge():
    for let_go in (BlockSpaceManager.free, BlockSpaceManager.release):
        space, first, second = two_equal_blocks()
        let_go(space, second.seqs[0])
        if let_go is BlockSpaceManager.free:
            second.end(second.seqs[0], SequenceStatus.FINISHED_STOPPED)
        space.merge_duplicates()
        assert space.num_used_blocks == 1
        space.check_conservation()


def test_what_was_computed_before_a_reset_is_not_found_by_a_merge():
    space, first, second = two_equal_blocks()
    space.reset_prefix_cache()
    space.merge_duplicates()
    assert space.num_used_blocks == 2
    assert space.allocate(make_group([5, 6, 7], 2)) == 0
