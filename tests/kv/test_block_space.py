"""BlockSpaceManager: admission with a watermark, sharing inside a group, release."""

from lullm.kv.block_space import AllocStatus, BlockSpaceManager
from lullm.types.outputs import RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.sequence import Sequence, SequenceGroup


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
    space.promote(first.seqs[0])
    assert space.allocate(second) == 8
    assert space.num_used_blocks == 4
    assert (space.prefix_cache.queries, space.prefix_cache.hits) == (20, 8)
    space.check_conservation()


def test_prompt_logprobs_skip_the_cache():
    space = BlockSpaceManager(8, 4)
    prompt = list(range(10))
    first, second = make_group(prompt, 0), make_group(prompt, 1, prompt_logprobs=1)
    space.allocate(first)
    first.seqs[0].num_computed_tokens = 10
    space.promote(first.seqs[0])
    assert space.allocate(second) == 0


def test_a_returning_group_shares_its_prompt_without_a_cache():
    space = BlockSpaceManager(16, 4, enable_prefix_caching=False)
    group = make_group(list(range(10)), 0, n=2)
    group.seqs.append(Sequence(1, 1, list(range(10)) + [7, 7, 7], 10))
    assert space.num_required_blocks(group) == 3 + 2
    space.allocate(group)
    leader, other = group.seqs
    assert space.block_ids(leader)[0][:2] == space.block_ids(other)[0][:2]
    assert space.num_used_blocks == 5
    assert other.num_computed_tokens == 8
    assert space.append_slots(leader) == [], "the leader fills the shared blocks for both: nothing to copy"
    space.check_conservation()


def test_reset_prefix_cache():
    space = BlockSpaceManager(8, 4)
    first = make_group(list(range(10)), 0)
    space.allocate(first)
    first.seqs[0].num_computed_tokens = 10
    space.promote(first.seqs[0])
    space.reset_prefix_cache()
    assert space.allocate(make_group(list(range(10)), 1)) == 0
