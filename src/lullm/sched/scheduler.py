"""The scheduler: `plan()` says what the next step computes, `apply()` takes in what it found.

There is no prefill phase and no decode phase. Every sequence has tokens, and a counter of those that are computed;
each step gives the sequences a share of the token budget so that the counters catch up. A sequence whose counter
reaches its end gets one more token drawn. A chunk of a prompt, a prefix-cache hit, one decoded token and the
recomputation after a preemption are the same thing.

Groups are served strictly in order (`Order`): by arrival, or by priority and then arrival. A group can only be
preempted for one that stands before it, and whoever was preempted comes back before everybody behind him.

Nobody starves ('fcfs', chunked): counted from its arrival, a request has ended within as many steps as it and the
unfinished requests before it have tokens at their ends, every sequence counted with its prompt; work that is done
again after preemptions is included. For the running groups are always the first ones in order. So the first of all
runs, is never preempted, and is left at least one token of every step's budget (max_num_batched_tokens >=
max_num_seqs): from the step in which it comes first it computes each of its tokens once at most, whatever it had
lost before, and the last token is drawn without being computed. With 'priority' a request waits for those before it
as long as such requests keep coming. The prefill-first policy has no bound either: decodes wait while new prompts can
be admitted. (`tests/sched/test_starvation.py`)
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from lullm.errors import InvalidRequestError
from lullm.kv.block_space import AllocStatus, BlockSpaceManager
from lullm.sched.preemption import PreemptionPolicy
from lullm.sched.queue import GroupQueue, Order
from lullm.sched.roster import Roster
from lullm.types.request import GenerateRequest
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import NO_TOKEN, BlockPair, Draw, DrawnToken, Span, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Budgets of one step, and the longest sequence (tokens)."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int


@dataclass(frozen=True, slots=True)
class SequenceUpdate:
    """What a step did to one sequence: a drawn token, or (`drawn` None) an end without one."""

    group: SequenceGroup
    seq: Sequence
    drawn: DrawnToken | None


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start. Prompt tokens count once per request, recomputed ones not again."""

    preemptions: int = 0
    prompt_tokens: int = 0
    generation_tokens: int = 0


@dataclass(slots=True)
class _Draft:
    """A plan in the making: what is left of the token budget, and what it holds so far."""

    budget: int
    spans: list[Span] = field(default_factory=list)
    copies: list[BlockPair] = field(default_factory=list)
    swap_out: list[BlockPair] = field(default_factory=list)
    swap_in: list[BlockPair] = field(default_factory=list)


class Scheduler:
    """Continuous batching over three queues: waiting, running, swapped.

    Running groups stand in order, so the last one is always the right victim, and no group that a plan already holds
    is ever preempted in the same step. `plan` moves the counters: a plan is a promise that the step will run, so
    `apply` must follow with its result.

    Two policies. Chunked (the default): every step mixes decodes with chunks of prompts. Prefill-first
    (`enable_chunked_prefill` False): a step computes whole prompts if any can be admitted, and decodes otherwise;
    with a delay factor, prompts are let gather for that share of the last prompt step's duration.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        block_space: BlockSpaceManager,
        policy: str = "fcfs",
        clock: Callable[[], float] = lambda: 0.0,
        preemption: PreemptionPolicy | None = None,
        enable_chunked_prefill: bool = True,
        delay_factor: float = 0.0,
    ) -> None:
        self.limits = limits
        self.block_space = block_space
        self.preemption = preemption or PreemptionPolicy()
        self.stats = SchedulerStats()
        self.order = Order("priority" if policy == "priority" else "fcfs")
        self.running: list[SequenceGroup] = []
        self.waiting = GroupQueue(self.order)
        self.swapped = GroupQueue(self.order)
        self._clock = clock
        self._is_chunked = enable_chunked_prefill
        self._delay_factor = delay_factor
        self._last_prompt_plan: float | None = None
        self._last_prompt_latency_s = 0.0
        self._roster = Roster(block_space, self.order)
        self._capped: list[SequenceUpdate] = []

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> SequenceGroup:
        """Queue a request.

        Raises:
            InvalidRequestError: it can never run under these limits, or its id is taken.
        """
        params = request.params
        if params.num_sequences > self.limits.max_num_seqs:
            name = "beam_width" if params.beam_width else "best_of" if params.best_of else "n"
            raise InvalidRequestError(
                f"{name}={params.num_sequences} is above the {self.limits.max_num_seqs} sequences that may run at once "
                "(max_num_seqs)",
                name,
            )
        group = self._roster.add(request, self.limits.max_model_len)
        self.waiting.push(group)
        return group

    def abort(self, request_id: str) -> SequenceGroup | None:
        """End a request and free its blocks at once; None if there is no such request (any more)."""
        group = self._roster.find(request_id)
        if group is None:
            return None
        for seq in group.unfinished:
            self._roster.end(seq, SequenceStatus.FINISHED_ABORTED)
        self._forget_if_finished(group)
        return group

    def finish(self, seq: Sequence, stop_reason: int | str | None) -> None:
        """End one sequence from outside: its text has reached a stop string."""
        group, _ = self._roster.member(seq.seq_id)
        self._roster.end(seq, SequenceStatus.FINISHED_STOPPED, stop_reason)
        self._forget_if_finished(group)

    @property
    def has_unfinished(self) -> bool:
        return len(self._roster) > 0

    @property
    def unfinished_ids(self) -> list[str]:
        return self._roster.request_ids

    # -- one step ------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """What to compute next; an empty plan if there is nothing to do."""
        draft = _Draft(self.limits.max_num_batched_tokens)
        if self._is_chunked:
            self._make_way(draft)
            if self._plan_running(draft):
                self._admit(draft)
        else:
            self._plan_prefill_first(draft)
        demoted, restored = self.block_space.take_cache_moves()
        return StepPlan(draft.spans, demoted + draft.swap_out, restored + draft.swap_in, draft.copies)

    def apply(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Append the drawn tokens, end what has ended; one update per drawn token, in plan order."""
        now = self._clock()
        self._observe(plan, result)
        if self.block_space.window is not None:
            for group in self.running:
                for seq in group.unfinished:
                    self.block_space.slide(seq)
        updates, self._capped = self._capped, []
        for seq_id, rows in result.prompt_logprobs.items():
            self._roster.member(seq_id)[0].prompt_logprobs.extend(rows)
        offers: dict[str, list[DrawnToken]] = {}
        for drawn in result.tokens:
            group, seq = self._roster.member(drawn.seq_id)
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
            self.stats.generation_tokens += 1
            self._end_if_done(group, seq, drawn.token_id)
            updates.append(SequenceUpdate(group, seq, drawn))
        for beams in offers.values():
            group, leader = self._roster.member(beams[0].seq_id)
            self.stats.generation_tokens += len(beams)
            self._roster.advance_beams(group, beams)
            if group.is_finished:
                updates.append(SequenceUpdate(group, leader, None))
        for group in {id(u.group): u.group for u in updates if u.seq.is_finished}.values():
            self._forget_if_finished(group)
        return updates

    # -- planning ------------------------------------------------------------------------------------------------

    def _plan_running(self, draft: _Draft) -> bool:
        """Give the running groups their tokens; False if that took preemptions, so that nobody is to be admitted."""
        num_preemptions = self.stats.preemptions
        # Every running sequence moves in every step: its token is reserved before a long prompt takes the budget.
        reserved = sum(len(group.unfinished) for group in self.running)
        index = 0
        while index < len(self.running):
            group = self.running[index]
            seqs = group.unfinished
            if not self._ensure_slots(group, seqs, draft):
                continue
            reserved -= len(seqs)
            self._plan_group(group, seqs, reserved, draft)
            index += 1
        return self.stats.preemptions == num_preemptions

    def _plan_prefill_first(self, draft: _Draft) -> None:
        now = self._clock()
        if self._last_prompt_plan is not None:
            self._last_prompt_latency_s = now - self._last_prompt_plan
            self._last_prompt_plan = None
        first = self.waiting.peek()
        delay_s = self._delay_factor * self._last_prompt_latency_s
        if not self.running or first is None or now - first.request.arrival_time >= delay_s:
            self._admit(draft)
        if draft.spans:
            self._last_prompt_plan = now
        else:
            self._plan_running(draft)

    def _ensure_slots(self, group: SequenceGroup, seqs: list[Sequence], draft: _Draft) -> bool:
        """Make room for the group's next tokens, preempting from the end; False if the group itself had to go."""
        while not self.block_space.can_append_slots(seqs):
            victim = self.running[-1]
            if victim is group and len(self.running) == 1:
                # Alone, and the pool is too small for it: waiting would not help.
                self.running.pop()
                self._cap(group)
            else:
                self._preempt(victim, draft)
            if victim is group:
                return False
        return True

    def _plan_group(self, group: SequenceGroup, seqs: list[Sequence], reserved: int, draft: _Draft) -> None:
        """Spans for the group's sequences within the budget, of which `reserved` tokens are promised to others."""
        leader = seqs[0]
        shared_len = leader.prompt_len - leader.prompt_len % self.block_space.block_size
        # Beams are compared with each other, so all of them draw in the same step or none does.
        spared = 0
        if self._roster.beam(group) is not None:
            num_uncomputed = sum(seq.num_uncomputed_tokens for seq in seqs)
            fits = self.block_space.can_append_slots(seqs, num_tokens=num_uncomputed)
            spared = int(num_uncomputed > draft.budget - reserved or not fits)
        for seq in seqs:
            # After a preemption the others share the leader's prompt blocks, so they wait until it has computed them.
            # The same step is early enough: within a layer all KV is written before any attention reads it.
            if seq is not leader:
                if leader.num_computed_tokens < shared_len:
                    continue
                self.block_space.share_prompt(leader, seq)
            num_tokens = min(
                seq.num_uncomputed_tokens - spared, draft.budget - reserved, self.block_space.num_appendable(seq)
            )
            if num_tokens <= 0:
                continue
            draft.copies.extend(self.block_space.append_slots(seq, num_tokens=num_tokens))
            draft.spans.append(self._span(group, seq, num_tokens))
            draft.budget -= num_tokens

    def _span(self, group: SequenceGroup, seq: Sequence, num_tokens: int) -> Span:
        start, end = seq.num_computed_tokens, seq.num_computed_tokens + num_tokens
        targets: list[int] = []
        params = group.request.params
        if params.prompt_logprobs is not None and len(group.prompt_logprobs) < seq.prompt_len - 1:
            targets = seq.token_ids[start + 1 : min(end + 1, seq.prompt_len)]
        seq.num_computed_tokens = end
        self.block_space.promote(seq)
        drawing: list[Sequence] = []
        if end == len(seq):
            drawing = [seq]
            if group.num_unborn and self._roster.beam(group) is None:
                drawing += [self._roster.fork(group, seq) for _ in range(group.num_unborn)]
        return Span(
            seq_id=seq.seq_id,
            start=start,
            token_ids=seq.token_ids[start:end],
            block_ids=self.block_space.block_ids(seq),
            draws=[s.draw or self._make_draw(group, s) for s in drawing],
            prompt_targets=targets,
            num_prompt_logprobs=params.prompt_logprobs or 0,
        )

    def _make_draw(self, group: SequenceGroup, seq: Sequence) -> Draw:
        request = group.request
        beam = self._roster.beam(group)
        seq.draw = Draw(
            seq_id=seq.seq_id,
            seq_index=seq.index,
            params=request.params if beam is None else beam.draw_params,
            seed=request.seed,
            token_ids=seq.token_ids,
            prompt_len=seq.prompt_len,
            end_token_ids=request.end_token_ids + tuple(request.params.stop_token_ids or ()),
            bad_words_ids=request.bad_words_ids,
        )
        return seq.draw

    def _next_in_order(self) -> GroupQueue | None:
        """The queue whose first group goes next: nothing is prefilled past an older group that is swapped out."""
        waiting, swapped = self.waiting.peek(), self.swapped.peek()
        if waiting is None or swapped is None:
            return self.waiting if waiting is not None else self.swapped if swapped is not None else None
        return self.waiting if self.order.key(waiting) < self.order.key(swapped) else self.swapped

    def _admission(self, queue: GroupQueue) -> AllocStatus:
        """Whether the queue's first group can run now."""
        group = queue.peek()
        assert group is not None
        seats = self.limits.max_num_seqs - sum(g.num_seats for g in self.running)
        status = self.block_space.can_swap_in(group) if queue is self.swapped else self.block_space.can_allocate(group)
        if status is AllocStatus.OK and group.num_seats > seats:
            return AllocStatus.LATER
        return status

    def _admit(self, draft: _Draft) -> None:
        """Move groups from the queues to running, in order, while budget, seats and blocks last."""
        while draft.budget > 0 and (queue := self._next_in_order()) is not None:
            status = self._admission(queue)
            group = queue.peek()
            assert group is not None
            # Without chunking a prompt goes in one piece; the first one of a step always fits (config).
            is_too_long = not self._is_chunked and draft.spans and len(group.unfinished[0]) > draft.budget
            if status is AllocStatus.LATER or is_too_long:
                return
            queue.pop()
            if status is AllocStatus.NEVER:
                self._cap(group)
                continue
            if queue is self.swapped:
                draft.swap_in.extend(self.block_space.swap_in(group))
            else:
                self._allocate(group)
            for seq in group.unfinished:
                seq.status = SequenceStatus.RUNNING
            bisect.insort(self.running, group, key=self.order.key)
            self._plan_group(group, group.unfinished, 0, draft)

    def _allocate(self, group: SequenceGroup) -> None:
        num_cached = self.block_space.allocate(group)
        if group.num_cached_tokens is None:
            group.num_cached_tokens = num_cached
            group.metrics.first_scheduled_time = self._clock()
            self.stats.prompt_tokens += group.seqs[0].prompt_len

    # -- preemption and ends -------------------------------------------------------------------------------------

    def _make_way(self, draft: _Draft) -> None:
        """Preempt running groups of lower priority while the first in order cannot be admitted."""
        queue = self._next_in_order()
        group = queue.peek() if queue is not None else None
        if queue is None or group is None:
            return
        priority = self.order.key(group)[0]
        while self.running and self.order.key(self.running[-1])[0] > priority:
            if self._admission(queue) is not AllocStatus.LATER:
                return
            self._preempt(self.running[-1], draft)

    def _preempt(self, group: SequenceGroup, draft: _Draft) -> None:
        """Take the group's device blocks away, all of them, and queue it again under its old place."""
        self.running.remove(group)
        group.num_preemptions += 1
        self.stats.preemptions += 1
        action = self.preemption.choose(
            self.block_space.can_swap_out(group),
            self.block_space.num_held_blocks(group),
            sum(seq.num_computed_tokens for seq in group.unfinished),
        )
        if action == "swap":
            draft.swap_out.extend(self.block_space.swap_out(group))
            for seq in group.unfinished:
                seq.status = SequenceStatus.SWAPPED
            self.swapped.push(group)
            return
        self._requeue(group)

    def evict_all(self) -> None:
        """Take the blocks of all groups away; they will be computed again. For when KV cannot be kept."""
        groups = [*self.running, *self.swapped]
        self.running.clear()
        for group in groups:
            if group in self.swapped:
                self.swapped.remove(group)
            self._requeue(group)

    def _requeue(self, group: SequenceGroup) -> None:
        """Back into the queue, to be computed from the start."""
        for seq in group.unfinished:
            self.block_space.release(seq)
            seq.status = SequenceStatus.WAITING
        if len(group.prompt_logprobs) < group.seqs[0].prompt_len - 1:
            group.prompt_logprobs.clear()
        self.waiting.push(group)

    def _cap(self, group: SequenceGroup) -> None:
        """End a group that has grown beyond the whole pool; its updates go out with the next `apply`."""
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
        if seq.output_len == params.max_tokens or len(seq) >= self.limits.max_model_len:
            self._roster.end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED)

    def _forget_if_finished(self, group: SequenceGroup) -> None:
        if not group.is_finished or self._roster.find(group.request_id) is not group:
            return
        group.metrics.finished_time = self._clock()
        if group in self.running:
            self.running.remove(group)
        for queue in (self.waiting, self.swapped):
            if group in queue:
                queue.remove(group)
        self._roster.forget(group)

    def _observe(self, plan: StepPlan, result: StepResult) -> None:
        """Correct the speeds that 'auto' preemption decides by."""
        if self.preemption.speeds is not None:
            num_moved = len(plan.blocks_to_swap_out) + len(plan.blocks_to_swap_in)
            self.preemption.speeds.observe_copy(num_moved, self.preemption.block_bytes, result.swap_s)
            self.preemption.speeds.observe_compute(plan.num_tokens, result.compute_s)
