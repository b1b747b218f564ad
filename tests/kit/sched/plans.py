"""Spans and draws from what a test has at hand: lists, and the parameters of a request; what a sampler draws."""

from collections.abc import Sequence

from torch import Tensor

from lullm.sampling.sampler import Sampler
from lullm.types.draw import Draw, DrawParams, draw_params
from lullm.types.guided.params import Guide
from lullm.types.packed import pack
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import DrawnToken, Span


def new_draw(
    seq_id: int = 0,
    *,
    row: int = 0,
    seed: int = 0,
    seq_index: int = 0,
    token_ids: Sequence[int] = (),
    prompt_len: int = 0,
    end: Sequence[int] = (),
    bad: Sequence[Sequence[int]] = (),
    guide: Guide | None = None,
    **params: object,
) -> Draw:
    """The draw behind `token_ids`, `prompt_len` of them prompt, of a request with these parameters."""
    bad_words = tuple(tuple(word) for word in bad)
    request = GenerateRequest("", None, [], SamplingParams(**params), seed, 0.0, 0, tuple(end), bad_words, guide=guide)
    how, output_len = draw_params(request, seq_index), len(token_ids) - prompt_len
    return Draw(seq_id, row, how, output_len, pack(carried_tokens(how, token_ids, output_len)))


def carried_tokens(how: DrawParams, token_ids: Sequence[int], output_len: int) -> Sequence[int]:
    """Those that a draw behind `token_ids` has with it."""
    if how.edits is None or not how.reads_tokens:
        return []
    return token_ids if how.edits.reads_prompt else token_ids[len(token_ids) - output_len :]


def new_span(
    seq_id: int,
    start: int,
    token_ids: Sequence[int],
    block_ids: Sequence[int] | tuple[Sequence[int], ...],
    draws: Sequence[Draw] = (),
    prompt_targets: Sequence[int] = (),
    num_prompt_logprobs: int = 0,
) -> Span:
    """A span of a sequence; `block_ids`: a list, or a tuple of lists, one for each KV cache group."""
    blocks = tuple(pack(ids) for ids in (block_ids if isinstance(block_ids, tuple) else (block_ids,)))
    return Span(seq_id, start, pack(token_ids), blocks, tuple(draws), pack(prompt_targets), num_prompt_logprobs)


def sample(sampler: Sampler, logits: Tensor, draws: Sequence[Draw]) -> list[DrawnToken]:
    """One token per draw of logits on the host."""
    return sampler.draw(logits, draws).drawn()
