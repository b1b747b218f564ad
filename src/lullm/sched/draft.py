"""Draft: a plan that is being made. It gives sequences their shares of the token budget and writes their spans.

The scheduler chooses the next group, and reserves some budget for the groups behind it. The draft computes the tokens
of one group in a step. Its bounds are the budget, the free slots (with a sliding window), and two rules for groups of
several sequences: the leader comes first, since the others share its prompt blocks, and beams draw together.

`add` treats a group as computed: its counters move, its full blocks can be found by their content, and at the end of
its prompt the other sequences are forked. So the plan must run.
"""

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.roster import Roster
from lullm.types.draw import Draw, draw_params
from lullm.types.packed import pack
from lullm.types.sequence import Sequence, SequenceGroup
from lullm.types.step import PENDING_TOKEN, BlockPair, Span, StepPlan


class Draft:
    """The remaining token budget and the plan's contents so far.

    `swap_out` and `swap_in` take the moves of whole groups; those of cached content are added by `complete`.
    `holds_up`: the next plan depends on what this one's draws give, so it must wait for the result.
    """

    __slots__ = ("_block_space", "_copies", "_roster", "budget", "holds_up", "spans", "swap_in", "swap_out")

    def __init__(self, budget: int, block_space: BlockSpaceManager, roster: Roster) -> None:
        self.budget = budget
        self.holds_up = False
        self.spans: list[Span] = []
        self.swap_out: list[BlockPair] = []
        self.swap_in: list[BlockPair] = []
        self._copies: list[BlockPair] = []
        self._block_space = block_space
        self._roster = roster

    def add(self, group: SequenceGroup, seqs: list[Sequence], reserved: int = 0) -> None:
        """Spans for the group's sequences within the budget, of which `reserved` tokens are promised to others."""
        leader = seqs[0]
        # Beams are compared with each other, so all of them draw in the same step or none does.
        spared = 0
        if self._roster.beam(group) is not None:
            num_uncomputed = sum(seq.num_uncomputed_tokens for seq in seqs)
            fits = self._block_space.can_append_slots(seqs, num_tokens=num_uncomputed)
            spared = int(num_uncomputed > self.budget - reserved or not fits)
        for seq in seqs:
            # After a preemption the others share the leader's prompt blocks, so they wait until it has computed them.
            # The same step is early enough: within a layer all KV is written before any attention reads it.
            if seq is not leader:
                if leader.num_computed_tokens < leader.prompt_len - leader.prompt_len % self._block_space.block_size:
                    continue
                self._block_space.share_prompt(leader, seq)
            num_tokens = min(
                seq.num_uncomputed_tokens - spared, self.budget - reserved, self._block_space.num_appendable(seq)
            )
            if num_tokens <= 0:
                continue
            self._copies.extend(self._block_space.append_slots(seq, num_tokens=num_tokens))
            self.spans.append(self._span(group, seq, num_tokens))
            self.budget -= num_tokens

    def complete(self) -> StepPlan:
        """The plan, after the last group was added. Call once."""
        demoted, restored = self._block_space.take_cache_moves()
        return StepPlan(self.spans, demoted + self.swap_out, restored + self.swap_in, self._copies)

    def _span(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> Span:
        start, end = seq.num_computed_tokens, seq.num_computed_tokens + num_tokens
        targets: list[int] = []
        params = group.request.params
        if params.prompt_logprobs is not None and len(group.prompt_logprobs) < seq.prompt_len - 1:
            targets = seq.token_ids[start + 1 : min(end + 1, seq.prompt_len)]
        seq.num_computed_tokens = end
        if seq.token_ids[end - 1] != PENDING_TOKEN:
            self._block_space.promote(seq)
        drawing: list[Sequence] = []
        if end == len(seq):
            drawing = [seq]
            self.holds_up = self.holds_up or params.beam_width is not None
            if group.num_unborn and self._roster.beam(group) is None:
                drawing += [self._roster.fork(group, seq) for _ in range(group.num_unborn)]
        return Span(
            seq.seq_id,
            start,
            pack(seq.token_ids[start:end]),
            self._block_space.packed_block_ids(seq),
            tuple([self._draw(group, s, num_tokens - 1) for s in drawing]),
            pack(targets),
            params.prompt_logprobs or 0,
        )

    def _draw(self, group: SequenceGroup, seq: Sequence, row: int) -> Draw:
        params = seq.draw_params
        if params is None:
            beam = self._roster.beam(group)
            params = draw_params(group.request, seq.index) if beam is None else beam.draw_params
            seq.draw_params = params
        token_ids = b""
        if params.edits is not None:
            self.holds_up = self.holds_up or params.reads_tokens or params.edits.min_tokens > 0
            if params.reads_tokens:
                token_ids = pack(seq.token_ids)
        return Draw(seq.seq_id, row, params, seq.output_len, token_ids)
