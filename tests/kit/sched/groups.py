"""Sequence groups by their tokens, and what the scheduler does with a block space around a step of one."""

from lullm.kv.block_space import BlockSpaceManager
from lullm.types.outputs import RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.sequence import Sequence, SequenceGroup


def make_group(*token_ids: list[int], prompt_len: int | None = None, first_id: int = 0) -> SequenceGroup:
    """A sequence for each list, all with the first list's start as their prompt."""
    prompt = token_ids[0][:prompt_len]
    request = GenerateRequest(str(first_id), None, prompt, SamplingParams(n=len(token_ids)), 0, 0.0)
    seqs = [Sequence(first_id + i, i, list(ids), len(prompt)) for i, ids in enumerate(token_ids)]
    return SequenceGroup(request, seqs, RequestMetrics(0.0))


def compute(space: BlockSpaceManager, group: SequenceGroup, num_tokens: int, index: int = 0) -> None:
    """One step of a sequence of the group."""
    seq = group.seqs[index]
    space.append_slots(group, seq, num_tokens)
    space.slide(seq)
    space.take_cache_moves()
    space.check_conservation()
