"""Intake: applies the result of a step: sequences get tokens, and some end.

Every drawn token is appended to its sequence, which ends with it if it is an end token or a stop token, or if a length
is reached. Stop strings belong to the text and end a sequence from outside (`Scheduler.finish`). The tokens of a beam
search are offers, which are applied for all beams of a group at once.
"""

from dataclasses import dataclass

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.roster import Roster
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import NO_TOKEN, PENDING_TOKEN, DrawnToken, StepResult


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """The change of one sequence by a step: a drawn token, or (`drawn` None) an end without one."""

    group: SequenceGroup
    seq: Sequence
    drawn: DrawnToken | None


class Intake:
    """Applies results in order. `num_drawn` counts the tokens since the start, offers to beams included."""

    def __init__(self, block_space: BlockSpaceManager, roster: Roster, max_model_len: int) -> None:
        self.num_drawn = 0
        self._block_space = block_space
        self._roster = roster
        self._max_model_len = max_model_len
        self._capped: list[SequenceUpdate] = []

    def take(self, result: StepResult, now: float) -> list[SequenceUpdate]:
        """Append the drawn tokens, end what has ended; one update per drawn token, in plan order, after those of `cap`.

        Groups that end here stay on the roster until the caller removes them. Tokens of sequences that had ended
        before are ignored.
        """
        updates, self._capped = self._capped, []
        for seq_id, rows in result.prompt_logprobs.items():
            member = self._roster.find_member(seq_id)
            if member is not None:
                member[0].prompt_logprobs.extend(rows)
        offers: dict[str, list[DrawnToken]] = {}
        for drawn in result.tokens:
            member = self._roster.find_member(drawn.seq_id)
            if member is None or member[1].is_finished:
                continue
            group, seq = member
            if seq.token_ids[-1] == PENDING_TOKEN:
                seq.token_ids.pop()
            if group.metrics.first_token_time is None:
                group.metrics.first_token_time = now
            group.metrics.last_token_time = now
            if self._roster.beam(group) is not None and drawn.token_id != NO_TOKEN:
                offers.setdefault(group.request_id, []).append(drawn)
                continue
            if drawn.token_id == NO_TOKEN:
                self._roster.end(seq, SequenceStatus.FINISHED_ABORTED, "no token can be drawn from the model's logits")
                updates.append(SequenceUpdate(group, seq, None))
                continue
            seq.token_ids.append(drawn.token_id)
            if not seq.num_uncomputed_tokens:  # the next plan was made already: now its block's content has a name
                self._block_space.promote(seq)
            self.num_drawn += 1
            self._end_if_done(group, seq, drawn.token_id)
            updates.append(SequenceUpdate(group, seq, drawn))
        for beams in offers.values():
            group, leader = self._roster.member(beams[0].seq_id)
            self.num_drawn += len(beams)
            self._roster.advance_beams(group, beams)
            if group.is_finished:
                updates.append(SequenceUpdate(group, leader, None))
        return updates

    def cap(self, group: SequenceGroup) -> None:
        """End a group that has grown beyond the whole pool; the next `take` returns its updates."""
        seqs = group.unfinished
        self._roster.cap(group)
        self._capped.extend(SequenceUpdate(group, seq, None) for seq in seqs)

    def _end_if_done(self, group: SequenceGroup, seq: Sequence, token_id: int) -> None:
        params = group.request.params
        if seq.output_len >= params.min_tokens:
            if token_id in group.request.end_token_ids:
                return self._roster.end(seq, SequenceStatus.FINISHED_STOPPED)
            if params.stop_token_ids and token_id in params.stop_token_ids:
                return self._roster.end(seq, SequenceStatus.FINISHED_STOPPED, token_id)
        if seq.output_len == params.max_tokens or len(seq) >= self._max_model_len:
            self._roster.end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED)
