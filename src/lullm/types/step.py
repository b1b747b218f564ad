"""One step as plain data: what the scheduler wants computed (`StepPlan`) and what the workers found (`StepResult`).

A plan is complete: a worker needs nothing from earlier plans to run it, so preemption, forks and a restarted worker
need no messages of their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from lullm.types.sampling_params import SamplingParams

T_co = TypeVar("T_co", covariant=True)

BlockPair = tuple[int, int]
"""(source block id, destination block id)"""

RankedLogprob = tuple[int, float, int]
"""(token id, log-probability, rank); rank 1 is the most likely token."""

TokenLogprobs = Sequence[RankedLogprob]
"""One position: the chosen token first, then the most likely ones in order (the chosen is not repeated)."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One token to draw from the logits of a span's last row.

    The randomness of the draw is a function of (`seed`, `seq_index`, number of output tokens) alone, so that it does
    not depend on the batch. `token_ids` is the whole sequence, `prompt_len` of it prompt; read only.
    `end_token_ids` are the tokens that `min_tokens` forbids (end of sequence and stop tokens). `reads_tokens`: the
    draw depends on `token_ids` (penalties, bad words, min_tokens), or what follows on more than its token (beams); the
    step after it is planned when its result is known.
    """

    seq_id: int
    seq_index: int
    params: SamplingParams
    seed: int
    token_ids: Sequence[int]
    prompt_len: int
    end_token_ids: Sequence[int] = ()
    bad_words_ids: Sequence[Sequence[int]] = ()
    reads_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence whose KV is to be computed: a whole prompt, a chunk of it, or one token.

    `token_ids` stand at positions `start`, `start` + 1, ...; the last one may be PENDING_TOKEN. `block_ids` are the
    sequence's blocks in order; they cover all positions up to the span's end, and change once the next plan is made.
    `draws` is empty while the sequence has more tokens to catch up with; it has several entries when sequences are
    about to be forked. `prompt_targets`: for `prompt_logprobs`, the token that follows each of the first rows; empty
    otherwise.
    """

    seq_id: int
    start: int
    token_ids: Sequence[int]
    block_ids: Sequence[int]
    draws: Sequence[Draw] = ()
    prompt_targets: Sequence[int] = ()
    num_prompt_logprobs: int = 0

    @property
    def end(self) -> int:
        """The position behind the last token."""
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What one step computes, in the order: swap out, swap in, copy, spans."""

    spans: list[Span]
    blocks_to_swap_out: list[BlockPair] = field(default_factory=list)
    blocks_to_swap_in: list[BlockPair] = field(default_factory=list)
    blocks_to_copy: list[BlockPair] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Tokens that run through the model."""
        return sum(len(span.token_ids) for span in self.spans)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, not even a block to move."""
        return not (self.spans or self.blocks_to_swap_out or self.blocks_to_swap_in or self.blocks_to_copy)


PENDING_TOKEN = -2
"""Stands for the token that the step before draws for the same sequence, in a plan that was made before its result."""

NO_TOKEN = -1
"""`DrawnToken.token_id` when nothing can be drawn: the model gave NaN or +inf, or -inf for every allowed token."""


@dataclass(frozen=True, slots=True)
class DrawnToken:
    """The outcome of one `Draw`; `token_id` may be NO_TOKEN. `logprobs` is empty unless the parameters ask for it."""

    seq_id: int
    token_id: int
    logprobs: TokenLogprobs = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """The draws of all spans in plan order; for each span with `prompt_targets`, by seq_id, one entry per target.

    `swap_s` and `compute_s`: seconds that the block moves between the pools, and all the rest, have taken.
    """

    tokens: list[DrawnToken]
    prompt_logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    swap_s: float = 0.0
    compute_s: float = 0.0


class Running(Protocol[T_co]):
    """A piece of work that has been started."""

    def result(self) -> T_co:
        """What it gives. Blocks until it is done; raises what it raised. To be asked once, in the order of starts."""
        ...
