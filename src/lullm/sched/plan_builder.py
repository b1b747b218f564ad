"""PlanBuilder: makes a plan. It gives sequences their shares of the token budget and writes their spans.

The scheduler chooses the next group, and reserves some budget for later groups. The builder computes the tokens of one
group in a step, within the budget and the free slots (with a sliding window). Two rules hold for groups of several
sequences: the leader comes first, since the others share its prompt blocks; and beams draw together.

`add` treats a group as computed: its counters advance, its blocks full of known tokens can be found by their content,
and at the end of its prompt the other sequences are forked. So the plan must run.

Guesses (`Guesser`) use resources that are left over: budget, slots, and draws that no running sequence can need.
Each is a span of one token behind its sequence's own, so that it runs as a decode does. Its draw verifies the next one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lullm.config.engine_option import SchedulingPolicy
from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.guess.guesser import Guesser, may_be_guessed
from lullm.sched.roster import Roster
from lullm.types.draw import Draw, draw_params
from lullm.types.packed import PackedInts, pack, pack_one
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.types.step import AdapterMove, BlockPair, Span, StepPlan
from lullm.types.vision.tile import num_with_whole_tiles, shift_at, without_given


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Budgets of one step, and the longest sequence (tokens)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class SchedulingRules:
    """The engine's options that say how steps are planned; see `Scheduler`.

    Args:
        delay_factor: see `PromptDelay`. max_in_flight, feeds_back: see `Lookahead`.
        max_loras: adapters of a step; see `AdapterQueue`.
    """

    policy: SchedulingPolicy = "fcfs"
    enable_chunked_prefill: bool = True
    delay_factor: float = 0.0
    max_in_flight: int = 1
    feeds_back: bool = True
    max_loras: int = 0


class PlanBuilder:
    """The remaining token budget, and the plan's contents so far.

    `swap_out` and `swap_in` hold the moves of whole groups; `complete` adds those of cached content. `adapters` are put
    into places before all that.

    `reads_draws`: some sequences need the results of this plan's draws before more tokens of theirs can be planned.
    `is_blocked`: a group must be preempted, which needs a plan that is made while no step runs.

    Args:
        num_spare_draws: returns the number of draws that guesses may use.
        share: see `Lookahead.share`.
        guesser: who guesses the next tokens, and has begun this plan; None: nobody.

    Attributes:
        budget: tokens that the step has left.
    """

    __slots__ = (
        "_block_space", "_copies", "_guesser", "_max_kept_rows", "_max_model_len", "_num_ends", "_num_spare_draws",
        "_roster", "_spare_draws", "adapters", "budget", "is_blocked", "reads_draws", "share", "spans", "swap_in",
        "swap_out",
    )  # fmt: skip

    def __init__(
        self,
        limits: SchedulerLimits,
        block_space: BlockSpaceManager,
        roster: Roster,
        num_spare_draws: Callable[[], int],
        share: int | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        self.budget = limits.max_num_batched_tokens
        self.share = share
        self.reads_draws = self.is_blocked = False
        self._num_ends = 0  # sequences with nothing left to compute until the result arrives
        self.spans: list[Span] = []
        self.swap_out: list[BlockPair] = []
        self.swap_in: list[BlockPair] = []
        self.adapters: list[AdapterMove] = []
        self._copies: list[BlockPair] = []
        self._block_space = block_space
        self._roster = roster
        self._guesser = guesser if guesser is not None and guesser.is_active else None
        self._max_model_len = limits.max_model_len
        self._max_kept_rows = limits.max_num_batched_tokens
        self._num_spare_draws = num_spare_draws
        self._spare_draws: int | None = None  # not counted yet: counting the sequences costs a tenth of a plan

    def passes_over(self, seqs: list[Sequence]) -> bool:
        """Whether to skip a group: a draw of it is in flight, or this plan has its share of draws already."""
        if self.share is None:
            return False
        most = max(seq.num_uncomputed_tokens for seq in seqs)
        return most <= 0 or (self._num_ends >= self.share and most <= self.budget)

    def add(self, group: SequenceGroup, seqs: list[Sequence], reserved: int = 0) -> None:
        """Add spans for the group's sequences within the budget, of which `reserved` tokens belong to later groups."""
        if self.share is not None and self.passes_over(seqs):
            return
        space, leader = self._block_space, seqs[0]
        may_draw = True
        if group.request.params.beam_width is not None:
            may_draw = self._can_draw_together(seqs, reserved)
            self.reads_draws = self.reads_draws or may_draw
        for index, seq in enumerate(seqs):
            # After a preemption the others share the leader's prompt blocks, so they wait until it has computed them.
            # The same step is early enough: within a layer all KV is written before any attention reads it.
            if seq is not leader:
                shared_len = leader.prompt_len - leader.prompt_len % space.block_size
                if leader.num_computed_tokens < min(shared_len, seq.num_computed_tokens):
                    continue
                space.share_prompt(leader, seq)
            num_tokens = len(seq.token_ids) - seq.num_computed_tokens - (not may_draw)
            if space.has_windows:  # without windows all slots were taken at admission
                num_tokens = space.num_appendable(seq, num_tokens)
            if num_tokens > self.budget - reserved:
                num_tokens = self.budget - reserved
            if num_tokens <= 0:
                continue
            if space.has_states:
                num_tokens = space.num_until_snapshot(group, seq, num_tokens)
            if seq.tiles:
                num_tokens = num_with_whole_tiles(seq.tiles, seq.num_computed_tokens, num_tokens)
                if not num_tokens:  # the rest of a picture waits for a step with room for all of it
                    continue
            self.spans.append(self._span(group, seq, num_tokens))
            if self._guesser is not None:
                self._add_guesses(self._guesser, group, seq, reserved + len(seqs) - 1 - index)

    def complete(self) -> StepPlan:
        """The plan, after the last group was added. Call once."""
        demoted, restored = self._block_space.take_cache_moves()
        swaps = demoted + self.swap_out, restored + self.swap_in
        draft_spans = [] if self._guesser is None else self._guesser.take_spans()
        tiles, dropped = self._block_space.tiles.take(self._max_kept_rows) if self.spans else ([], [])
        return StepPlan(self.spans, *swaps, self._copies, self.adapters, draft_spans, tiles, dropped)

    def _can_draw_together(self, seqs: list[Sequence], reserved: int) -> bool:
        """Whether all beams can reach their ends in this step. They are compared, so all draw or none does."""
        num_uncomputed = sum(seq.num_uncomputed_tokens for seq in seqs)
        fits = self._block_space.can_append_slots(seqs, num_tokens=num_uncomputed)
        return fits and num_uncomputed <= self.budget - reserved

    def _add_guesses(self, guesser: Guesser, group: SequenceGroup, seq: Sequence, num_others: int) -> None:
        """Add spans for guesses of the sequence's next tokens, as many as fit into the step.

        Room for one token stays for each of the `num_others` later sequences of the plan. No guesses while tokens of
        the sequence are left to compute, nor where `may_be_guessed` is False.
        """
        params = seq.draw_params
        if params is None or seq.num_uncomputed_tokens or not may_be_guessed(seq):
            return
        if self._spare_draws is None:
            self._spare_draws = self._num_spare_draws()
        max_tokens = group.request.params.max_tokens
        most = min(
            self.budget - num_others,
            self._spare_draws,
            # a step draws one token more than it has guesses
            self._max_model_len - len(seq) - 1,
            self._max_model_len if max_tokens is None else max_tokens - seq.output_len - 1,
            self._block_space.num_guess_slots(seq, num_others),
        )
        if most <= 0 or self._roster.beam(group) is not None:
            return
        token_ids = guesser.propose(seq, most)
        if not token_ids:
            return
        block_ids, copies = self._block_space.append_slots(group, seq, len(token_ids))
        assert not copies, "the sequence has made its last block its own"
        shift = shift_at(seq.tiles, len(seq)) if seq.tiles else 0
        for position, token_id in enumerate(token_ids, len(seq)):
            draw = Draw(seq.seq_id, 0, params, position + 1 - seq.prompt_len)
            token, place = pack_one(token_id), group.adapter_place
            self.spans.append(Span(seq.seq_id, position, token, block_ids, (draw,), adapter_place=place, shift=shift))
        self.budget -= len(token_ids)
        self._spare_draws -= len(token_ids)
        self.reads_draws = True

    def _span(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> Span:
        params, token_ids, start = group.request.params, seq.token_ids, seq.num_computed_tokens
        end, is_last = start + num_tokens, start + num_tokens == len(token_ids)
        self.budget -= num_tokens
        self._num_ends += is_last
        block_ids, copies = self._block_space.append_slots(group, seq, num_tokens)
        if copies:
            self._copies.extend(copies)
        pooled, own_params = group.pooled, seq.draw_params
        draws: tuple[Draw, ...] = ()
        if is_last and own_params is not None and own_params.edits is None:  # most draws; saves calls
            draws = (Draw(seq.seq_id, end - start - 1, own_params, end - seq.prompt_len),)
        elif is_last and pooled is None:
            draws = self._draws(group, seq, end - start - 1)
        return Span(
            seq.seq_id,
            start,
            pack_one(token_ids[start]) if num_tokens == 1 else pack(token_ids[start:end]),
            block_ids,
            draws,
            b"" if params.prompt_logprobs is None else self._prompt_targets(group, seq, start, end),
            params.prompt_logprobs or 0,
            None if pooled is None else pooled.wanted(start, end),
            group.adapter_place,
            self._block_space.tiles.show(seq, start, end) if seq.tiles else (),
            shift_at(seq.tiles, start) if seq.tiles else 0,
            seq.num_encoder_rows,
            group.request.second_text,
            pooled is None or pooled.are_summed,
        )

    def _prompt_targets(self, group: SequenceGroup, seq: Sequence, start: int, end: int) -> PackedInts:
        """The prompt's tokens after the positions `start`..`end` - 1, if their log-probabilities are still wanted."""
        # Forks compute the prompt, too, if the step that drew for them was lost with its results.
        is_wanted = seq is group.unfinished[0]
        is_wanted = is_wanted and len(group.prompt_logprobs) < len(group.request.prompt_token_ids) - 1
        start = max(start, seq.num_encoder_slots)
        return pack(seq.token_ids[start + 1 : min(end + 1, seq.prompt_len)]) if is_wanted else b""

    def _draws(self, group: SequenceGroup, seq: Sequence, row: int) -> tuple[Draw, ...]:
        """The draws of a span that reaches the sequence's end in `row`: its own, and those of forks."""
        is_first = seq.draw_params is None
        first = self._draw(group, seq, row)
        if is_first and self._roster.beam(group) is None:
            forks = [self._roster.fork(group, seq) for _ in range(group.num_unborn)]
            return first, *(self._draw(group, fork, row) for fork in forks)
        return (first,)

    def _draw(self, group: SequenceGroup, seq: Sequence, row: int) -> Draw:
        """The draw after the sequence's tokens."""
        params = seq.draw_params
        if params is None:
            beam = self._roster.beam(group)
            params = draw_params(group.request, seq.index) if beam is None else beam.draw_params
            seq.draw_params = params
        token_ids = b""
        if params.edits is not None:
            self.reads_draws = self.reads_draws or params.reads_tokens or params.edits.min_tokens > 0
            if params.reads_tokens:
                start = seq.num_encoder_slots if params.edits.reads_prompt else seq.prompt_len
                read = seq.token_ids[start:]
                token_ids = pack(without_given(read, seq.tiles) if seq.tiles and not start else read)
        return Draw(seq.seq_id, row, params, len(seq.token_ids) - seq.prompt_len, token_ids)
