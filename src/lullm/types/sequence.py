"""Sequence and SequenceGroup: the state of a request while the engine works on it.

A sequence has tokens, and a counter of those whose KV is computed. Prefill, chunked prefill, a prefix-cache hit,
decode and recompute after preemption are all this counter catching up with the tokens there are.
"""

import enum
from dataclasses import dataclass, field
from typing import Literal

from lullm.types.draw import DrawParams
from lullm.types.outputs import LogprobRows, RequestMetrics
from lullm.types.pooling.rows import PooledRows
from lullm.types.request import GenerateRequest
from lullm.types.step import PENDING_TOKEN


class SequenceStatus(enum.Enum):
    """Where a sequence is. The FINISHED states are terminal."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    SWAPPED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()

    def __init__(self, _: int) -> None:
        # No property: it is asked several times a step for every sequence, and a call costs five times as much.
        self.is_finished = self.name.startswith("FINISHED")

    @property
    def finish_reason(self) -> str | None:
        """The word users see; None while the sequence lives."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
}


@dataclass(slots=True, eq=False)
class Sequence:
    """One line of tokens: the prompt, then what was generated.

    `num_computed_tokens` tokens have their KV in the cache, or get it in a step that is planned. The last `num_pending`
    tokens are PENDING_TOKEN: steps that are planned draw them. `index` numbers the sequence within its group.
    `cumulative_logprob` is kept for beams only. `cache_salt`: the request's.
    """

    seq_id: int
    index: int
    token_ids: list[int]
    prompt_len: int
    status: SequenceStatus = SequenceStatus.WAITING
    num_computed_tokens: int = 0
    num_pending: int = 0
    stop_reason: int | str | None = None
    cumulative_logprob: float = 0.0
    cache_salt: str = ""
    # How its tokens are drawn: the same at every step, so it is made once.
    draw_params: DrawParams | None = None
    # Guesses of the tokens to come. The next span verifies as many as there is room for, which uses them up; a token
    # that is appended before makes them void.
    draft_token_ids: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """All tokens but the pending ones."""
        return len(self.token_ids) - self.num_pending

    @property
    def output_len(self) -> int:
        """Tokens generated so far, pending ones included."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the counter has to catch up with."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def add_pending(self) -> None:
        """A planned step draws a token for the sequence."""
        self.token_ids.append(PENDING_TOKEN)
        self.num_pending += 1

    def append(self, token_id: int) -> None:
        """Add a drawn token, in the place of the first pending one if there are any."""
        if self.num_pending:
            self.token_ids[-self.num_pending] = token_id
            self.num_pending -= 1
        else:
            self.token_ids.append(token_id)
        if self.draft_token_ids:
            self.draft_token_ids = []

    def drop_pending(self) -> None:
        """The sequence ends with its last known token."""
        del self.token_ids[self.num_known_tokens :]
        self.num_pending = 0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished line of a beam search: output tokens, sum of log-probabilities, rank score, and why it ended."""

    token_ids: list[int]
    cumulative_logprob: float
    score: float
    finish_reason: Literal["stop", "length"]
    stop_reason: str | None = None


@dataclass(slots=True, eq=False)
class SequenceGroup:
    """The sequences of one request: they are admitted, preempted and finished together.

    A group starts with one sequence, which computes the prompt. The others (`params.num_sequences` in all) are
    forked from it when the first token is drawn and share the prompt's blocks.
    """

    request: GenerateRequest
    seqs: list[Sequence]
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    # One entry per prompt token but the first, as they are computed; complete before the first token is drawn.
    prompt_logprobs: LogprobRows = field(default_factory=LogprobRows)
    # What is wanted of the prompt instead of tokens; the group ends once it is complete.
    pooled: PooledRows | None = None
    # The answer of a beam search, best first, once it is done. The live beams are `seqs`.
    hypotheses: list[Hypothesis] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def reads_whole_prompt(self) -> bool:
        """Whether no cached prefix may replace rows of the prompt: something is wanted of each, or it was asked for."""
        if self.pooled is not None:
            return self.pooled.needs_whole_prompt
        params = self.request.params
        return params.prompt_logprobs is not None or bool(params.skip_reading_prefix_cache)

    def forget_partial_prompt(self) -> None:
        """The sequences are computed again: forget what some of the prompt's rows gave, unless all have."""
        if len(self.prompt_logprobs) < self.seqs[0].prompt_len - 1:
            self.prompt_logprobs.clear()
        if self.pooled is not None:
            self.pooled.clear()

    @property
    def unfinished(self) -> list[Sequence]:
        """The sequences that have not ended, the leader first."""
        if len(self.seqs) == 1:  # nearly always, and asked at every step
            seq = self.seqs[0]
            return [] if seq.status.is_finished else [seq]
        return [s for s in self.seqs if not s.status.is_finished]

    @property
    def is_finished(self) -> bool:
        return not self.unfinished

    @property
    def num_unborn(self) -> int:
        """Sequences still to be forked from the first."""
        return self.request.params.num_sequences - len(self.seqs)

    @property
    def num_seqs(self) -> int:
        """How much of `max_num_seqs` the group takes: its live sequences and those still to be forked."""
        return len(self.unfinished) + self.num_unborn
