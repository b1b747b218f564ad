"""Intake: applies the result of a step: sequences get tokens, and some end.

Every accepted token is appended to its sequence. The sequence ends at an end token, a stop token or a length limit, and
later tokens are dropped. A sequence whose prompt is pooled ends once all its rows have arrived. Stop strings are found
in the text, and end a sequence from outside (`Scheduler.finish`). The tokens of a beam search are offers, which are
applied for all beams of a group at once.
"""

from itertools import islice, pairwise

import msgspec

from lullm.kv.block_space import BlockSpaceManager
from lullm.log import get_logger
from lullm.sched.guess.guesser import Guesser
from lullm.sched.roster import Roster
from lullm.sched.stats import SchedulerStats
from lullm.types.packed import unpack
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import GUESSED_TOKEN, NO_TOKEN, DrawnToken, StepPlan, StepResult

logger = get_logger(__name__)


class SequenceUpdate(msgspec.Struct, gc=False):
    """The change of one sequence by a step: a drawn token, or an end without a token (`drawn` None).

    `is_end`: the sequence ends with this change. A step may bring several updates of one sequence.
    """

    group: SequenceGroup
    seq: Sequence
    drawn: DrawnToken | None
    is_end: bool


class Intake:
    """Applies results in order, and counts them in `stats`."""

    def __init__(
        self,
        block_space: BlockSpaceManager,
        roster: Roster,
        max_model_len: int,
        stats: SchedulerStats,
        guesser: Guesser | None = None,
    ) -> None:
        self._stats = stats
        self._block_space = block_space
        self._roster = roster
        self._max_model_len = max_model_len
        self._guesser = guesser
        self._outgrown: list[SequenceUpdate] = []

    def take(self, plan: StepPlan, result: StepResult, now: float) -> list[SequenceUpdate]:
        """Append the accepted tokens, and end sequences that are done; one update per token, in plan order.

        Groups that end here stay on the roster until the caller removes them. Tokens of sequences that had ended before
        are ignored.
        """
        self._take_prompt_logprobs(result)
        updates: list[SequenceUpdate] = []
        self._take_pooled(result, updates)
        offers: dict[str, list[DrawnToken]] = {}
        num_by_last_s: dict[float, int] = {}  # by the time of their last token: requests that get tokens now
        find_member = self._roster.find_member
        for drawn in result.tokens if self._guesser is None else self._accepted(self._guesser, plan, result):
            member = find_member(drawn.seq_id)
            if member is None or member[1].status.is_finished:
                continue
            group, seq = member
            metrics = group.metrics
            last_s = metrics.last_token_time
            if last_s is None:
                metrics.first_token_time = metrics.last_token_time = now
            elif last_s != now:
                num_by_last_s[last_s] = num_by_last_s.get(last_s, 0) + 1
                metrics.last_token_time = now
            if drawn.token_id == NO_TOKEN:
                self._end_undrawable(group, seq)
                updates.append(SequenceUpdate(group, seq, None, True))
            elif group.request.params.beam_width is not None:
                offers.setdefault(group.request_id, []).append(drawn)
            else:
                self._append(group, seq, drawn.token_id)
                updates.append(SequenceUpdate(group, seq, drawn, seq.status.is_finished))
        self._stats.gaps.add(num_by_last_s, now)
        for beams in offers.values():
            group, leader = self._roster.member(beams[0].seq_id)
            self._stats.generation_tokens += len(beams)
            self._roster.advance_beams(group, beams)
            if group.is_finished:
                updates.append(SequenceUpdate(group, leader, None, True))
        return updates

    def _take_prompt_logprobs(self, result: StepResult) -> None:
        for seq_id, rows in result.prompt_logprobs.items():
            member = self._roster.find_member(seq_id)
            if member is not None:
                member[0].prompt_logprobs.extend(rows)

    def _end_undrawable(self, group: SequenceGroup, seq: Sequence) -> None:
        reason = "no token can be drawn: the model gave no finite logits for this request"
        if group.request.params.structured_outputs is not None:
            reason += ", or the form of its output (structured_outputs) became too large"
        self._roster.end(seq, SequenceStatus.FINISHED_ABORTED, reason)

    def _take_pooled(self, result: StepResult, updates: list[SequenceUpdate]) -> None:
        """Add up pooled rows, or keep them. A sequence ends with its last ones."""
        for pooled in result.pooled:
            member = self._roster.find_member(pooled.seq_id)
            if member is None or member[1].status.is_finished or (rows := member[0].pooled) is None:
                continue
            group, seq = member
            rows.add(pooled.values, pooled.num_rows)
            if not rows.is_complete:
                continue
            if rows.is_finite:
                self._stats.pooled += 1
                self._roster.end(seq, SequenceStatus.FINISHED_STOPPED)
            else:
                reason = "nothing can be pooled: the model gave no finite hidden states for this request"
                self._roster.end(seq, SequenceStatus.FINISHED_ABORTED, reason)
            updates.append(SequenceUpdate(group, seq, None, True))

    def end_outgrown(self, group: SequenceGroup) -> None:
        """End a group that the whole pool cannot hold, with a warning. `take_outgrown` returns its updates."""
        seqs = group.unfinished
        self._stats.kv_cache_full += 1
        logger.warning(
            "request %r is cut at %d tokens: it needs more than all %d KV blocks; give the cache more memory "
            "(kv_cache_memory_bytes), or ask for fewer tokens or sequences",
            group.request_id,
            sum(map(len, seqs)),
            self._block_space.num_blocks,
        )
        self._roster.end_outgrown(group)
        self._outgrown.extend(SequenceUpdate(group, seq, None, True) for seq in seqs)

    def take_outgrown(self) -> list[SequenceUpdate]:
        """The updates of `end_outgrown` since the last call."""
        outgrown, self._outgrown = self._outgrown, []
        return outgrown

    def _append(self, group: SequenceGroup, seq: Sequence, token_id: int) -> None:
        """Append a drawn token, and end the sequence if it is done."""
        seq.append(token_id)
        self._stats.generation_tokens += 1
        params, num_known = group.request.params, len(seq.token_ids) - seq.num_pending
        # The token was computed already, as a pending token or a guess. Only now is the content of its block known.
        if seq.num_computed_tokens >= num_known:
            self._block_space.promote(group, seq)
        output_len = num_known - seq.prompt_len
        if output_len >= params.min_tokens:
            if token_id in group.request.end_token_ids:
                return self._roster.end(seq, SequenceStatus.FINISHED_STOPPED)
            if params.stop_token_ids and token_id in params.stop_token_ids:
                return self._roster.end(seq, SequenceStatus.FINISHED_STOPPED, token_id)
        if output_len == params.max_tokens or num_known - seq.num_encoder_slots >= self._max_model_len:
            self._roster.end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED)

    def _accepted(self, guesser: Guesser, plan: StepPlan, result: StepResult) -> list[DrawnToken]:
        """The tokens that follow right guesses, or no guess. Forgets the KV of wrong guesses.

        A guess is right if the span before it, of the same sequence, drew this very token.
        """
        guesser.observe(plan, result)
        self._stats.draft_s += result.draft_s
        if all(one.seq_id != other.seq_id for one, other in pairwise(plan.spans)):
            return result.tokens
        drawn, accepted, guesses = iter(result.tokens), list[DrawnToken](), iter(unpack(result.guesses))
        num_of_seq: dict[int, list[int]] = {}  # sequence -> its guesses, and those that were right
        last_id, expected = -1, None
        for span in plan.spans:
            tokens = list(islice(drawn, len(span.draws)))
            if span.seq_id == last_id:
                nums = num_of_seq.setdefault(last_id, [0, 0])
                nums[0] += 1
                [guess] = unpack(span.token_ids)
                if guess == GUESSED_TOKEN:
                    guess = next(guesses)
                if guess != expected:
                    expected = None
                    continue
                nums[1] += 1
            accepted += tokens
            last_id, expected = span.seq_id, tokens[0].token_id if tokens else None
        self._take_guesses(guesser, num_of_seq)
        return accepted

    def _take_guesses(self, guesser: Guesser, num_of_seq: dict[int, list[int]]) -> None:
        """Count the guesses, and forget the KV of wrong ones. `num_of_seq`: sequence -> (guesses, right ones)."""
        for seq_id, (num, num_right) in num_of_seq.items():
            self._stats.num_drafts += 1
            self._stats.num_draft_tokens += num
            self._stats.num_accepted_tokens += num_right
            self._stats.count_positions(num, num_right)
            member = self._roster.find_member(seq_id)
            if member is None or member[1].is_finished:
                continue
            seq = member[1]
            guesser.learn(seq, num, num_right)
            if num_right < num:
                seq.num_computed_tokens -= num - num_right
                self._block_space.shrink(seq)
