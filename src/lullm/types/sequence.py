"""Sequence and SequenceGroup: the state of a request while the engine works on it.

A sequence has tokens, and a counter of those whose KV is computed. Prefill, chunked prefill, a prefix-cache hit, decode
and recompute after preemption are all this counter catching up with the tokens.
"""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from lullm.types.draw import DrawParams
from lullm.types.outputs import LogprobRows, RequestMetrics
from lullm.types.request import GenerateRequest
from lullm.types.step import NO_PLACE, PENDING_TOKEN
from lullm.types.vision.tile import TilePlace, num_at_once

if TYPE_CHECKING:
    from lullm.types.pooling.token_rows import Pooled  # numpy


class SequenceStatus(enum.Enum):
    """Where a sequence is. The FINISHED states are terminal."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    SWAPPED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()

    def __init__(self, _: int) -> None:
        # Not a property: it is read several times a step for every sequence, and a call costs five times as much.
        self.is_finished = self.name.startswith("FINISHED")

    @property
    def finish_reason(self) -> str | None:
        """The reason for users; None before the end."""
        return _FINISH_REASONS.get(self)


_FINISH_REASONS = {
    SequenceStatus.FINISHED_STOPPED: "stop",
    SequenceStatus.FINISHED_LENGTH_CAPPED: "length",
    SequenceStatus.FINISHED_ABORTED: "abort",
}


@dataclass(slots=True, eq=False, weakref_slot=True)
class Sequence:
    """One line of tokens: the prompt, then the generated ones.

    `num_computed_tokens` tokens have their KV in the cache, or get it in a step that is planned. The last `num_pending`
    tokens are PENDING_TOKEN: planned steps draw them. `index` numbers the sequence within its group. Only beams have
    `cumulative_logprob`. `cache_salt`, `adapter_digest`, `tiles`: the request's.

    `num_encoder_slots`: the first places, in whole blocks, hold an encoder's rows. They count as computed tokens and as
    part of the prompt; their ids mean nothing.
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
    adapter_digest: bytes = b""
    tiles: tuple[TilePlace, ...] = ()
    num_encoder_slots: int = 0
    # Made once, since it is the same at every step.
    draw_params: DrawParams | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def num_known_tokens(self) -> int:
        """All tokens without the pending ones."""
        return len(self.token_ids) - self.num_pending

    @property
    def output_len(self) -> int:
        """Tokens generated so far, pending ones included."""
        return len(self.token_ids) - self.prompt_len

    @property
    def num_encoder_rows(self) -> int:
        """Rows of an encoder in the first places."""
        return self.tiles[0].num_rows if self.num_encoder_slots else 0

    @property
    def num_positions(self) -> int:
        """Tokens that count to the model's length: all but an encoder's rows."""
        return len(self.token_ids) - self.num_encoder_slots

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that the counter has to catch up with."""
        return len(self.token_ids) - self.num_computed_tokens

    @property
    def num_at_once(self) -> int:
        """The fewest of its next tokens that a step may compute."""
        return num_at_once(self.tiles, self.num_computed_tokens) if self.tiles else 1

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def add_pending(self) -> None:
        """A planned step draws a token for the sequence."""
        self.token_ids.append(PENDING_TOKEN)
        self.num_pending += 1

    def append(self, token_id: int) -> None:
        """Append a drawn token, replacing the first pending one if there is any."""
        if self.num_pending:
            self.token_ids[-self.num_pending] = token_id
            self.num_pending -= 1
        else:
            self.token_ids.append(token_id)

    def drop_pending(self) -> None:
        """Remove the pending tokens."""
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

    A group starts with one sequence, which computes the prompt. The others (`params.num_sequences` in all) are forked
    from it when the first token is drawn, and share the prompt's blocks.
    """

    request: GenerateRequest
    seqs: list[Sequence]
    metrics: RequestMetrics
    num_cached_tokens: int | None = None
    # The place of the adapter, from the time the group may run on.
    adapter_place: int = NO_PLACE
    # One entry per prompt token after the first, in the order of their computation; complete before the first draw.
    prompt_logprobs: LogprobRows = field(default_factory=LogprobRows)
    # The pooled rows of a request that draws no tokens; the group ends once they are complete.
    pooled: "Pooled | None" = None
    # The answer of a beam search, best first, once it is done. The live beams are `seqs`.
    hypotheses: list[Hypothesis] = field(default_factory=list)
    # The sequences that have not ended, the leader first. Asked at every step, so it is kept, and replaced on a change.
    unfinished: list[Sequence] = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = [seq for seq in self.seqs if not seq.is_finished]

    def add(self, seq: Sequence) -> None:
        """One more sequence."""
        self.seqs.append(seq)
        self.unfinished = [*self.unfinished, seq]

    def end(self, seq: Sequence, status: SequenceStatus, stop_reason: int | str | None = None) -> None:
        """The sequence ends with this status."""
        seq.status = status
        seq.stop_reason = stop_reason
        seq.drop_pending()
        self.unfinished = [other for other in self.unfinished if other is not seq]

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def adapter(self) -> int:
        """The number of the request's adapter; 0: none."""
        return self.request.adapter

    @property
    def most_cached(self) -> int | None:
        """How long a cached prefix may be: rows behind it have results, or the request asks for none; None: any."""
        if self.pooled is not None:
            return self.pooled.first_wanted
        params = self.request.params
        return 0 if params.prompt_logprobs is not None or params.skip_reading_prefix_cache else None

    def forget_partial_prompt(self) -> None:
        """The sequences are computed again: drop the results of prompt rows, unless they are complete."""
        if len(self.prompt_logprobs) < len(self.request.prompt_token_ids) - 1:
            self.prompt_logprobs.clear()
        if self.pooled is not None:
            self.pooled.clear()

    @property
    def is_finished(self) -> bool:
        return not self.unfinished

    @property
    def num_unborn(self) -> int:
        """Sequences that are still to be forked from the first."""
        return self.request.params.num_sequences - len(self.seqs)

    @property
    def num_seqs(self) -> int:
        """The group's share of `max_num_seqs`: its live sequences and those still to be forked."""
        return len(self.unfinished) + self.num_unborn
