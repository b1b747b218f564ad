"""The scheduler: `plan()` chooses the tokens that the next step computes, `apply()` takes its result.

There is no prefill phase and no decode phase. Every sequence has tokens, and a counter of those that are computed; each
step gives the sequences a share of the token budget so that the counters catch up. A sequence whose counter reaches its
end gets one more token drawn. A chunk of a prompt, a prefix-cache hit, one decoded token and the recomputation after a
preemption are the same thing.

Groups are served strictly in order (`Order`): by arrival, or by priority and then arrival. A group can only be
preempted for one before it, and a preempted group comes back before all groups after it.

No request starves ('fcfs', chunked). Take a request and the unfinished requests before it, and add up the tokens that
they have at their ends, for every sequence with its prompt. The request ends within so many steps of its arrival,
recomputation included. The reason: the running groups are always the first ones in order. So the first of all runs, is
never preempted, and gets at least one token of every step's budget (max_num_batched_tokens >= max_num_seqs). Once it is
first, it computes each of its tokens at most once, whatever it had lost before, and its last token is drawn without
being computed. (Planned ahead, a request that stops causes one more step, whose token is dropped.)

With 'priority' a request waits for those before it as long as such requests keep coming. The prefill-first policy has
no bound either: decodes wait while new prompts can be admitted. (`tests/sched/test_starvation.py`)
"""

import bisect
from collections.abc import Callable
from itertools import chain

from lullm.kv.admission import AllocStatus
from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.adapter.queue import AdapterQueue
from lullm.sched.delay import PromptDelay
from lullm.sched.guess.guesser import Guesser
from lullm.sched.intake import Intake, SequenceUpdate
from lullm.sched.lookahead import Lookahead
from lullm.sched.plan_builder import PlanBuilder, SchedulerLimits, SchedulingRules
from lullm.sched.preemption import PreemptionPolicy, Room
from lullm.sched.queue import GroupQueue, Order, first_in_order
from lullm.sched.roster import Roster
from lullm.sched.stats import SchedulerStats
from lullm.types.request import GenerateRequest
from lullm.types.sequence import Sequence, SequenceGroup, SequenceStatus
from lullm.types.step import StepPlan, StepResult


class Scheduler:
    """Continuous batching over three queues: waiting, running, swapped.

    Running groups stand in order, so the last one is always the right victim, and no group that a plan already holds
    is ever preempted in the same step. `plan` moves the counters: a plan is a promise that the step will run, so
    `apply` must follow with its result. While `can_plan` says so, further plans may be made before that, up to
    `max_in_flight` (`Lookahead`). Steps run, and results are applied, in the order of their plans.

    Two policies. Chunked (the default): every step mixes decodes with chunks of prompts. Prefill-first
    (`enable_chunked_prefill` False): a step computes whole prompts if any can be admitted, and decodes otherwise, with
    groups that come back from the host; a delay factor lets prompts gather for that share of the last prompt step.

    Args:
        clock: in seconds. preemption: None: preempted groups are computed again. guesser: guesses next tokens; None:
            nobody does.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        block_space: BlockSpaceManager,
        rules: SchedulingRules | None = None,
        clock: Callable[[], float] = lambda: 0.0,
        preemption: PreemptionPolicy | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        rules = rules or SchedulingRules()
        self.limits = limits
        self.block_space = block_space
        self.preemption = preemption or PreemptionPolicy()
        self.stats = SchedulerStats()
        self.order = Order(rules.policy)
        self.running: list[SequenceGroup] = []
        self.waiting = AdapterQueue(self.order, rules.max_loras)
        self.swapped = GroupQueue(self.order)
        self._clock = clock
        self._is_chunked = rules.enable_chunked_prefill
        self._delay = PromptDelay(rules.delay_factor)
        self.roster = Roster(block_space, self.order)
        self._lookahead = Lookahead(rules.max_in_flight, limits.max_model_len, rules.feeds_back)
        self.guesser = guesser
        self._intake = Intake(block_space, self.roster, limits.max_model_len, self.stats, guesser)

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> SequenceGroup:
        """Queue a request. Raises InvalidRequestError: it can never run under these limits, or its id is taken."""
        group = self.roster.add(request, self.limits.max_num_seqs, self.limits.max_model_len)
        self.waiting.push(group)
        return group

    def abort(self, request_id: str, reason: str | None = None) -> SequenceGroup | None:
        """End a request and free its blocks at once. Returns its group; None if it is unknown or has ended."""
        group = self.roster.find(request_id)
        if group is None:
            return None
        for seq in group.unfinished:
            self.roster.end(seq, SequenceStatus.FINISHED_ABORTED, reason)
        self._forget_if_finished(group)
        return group

    def finish(self, seq: Sequence, stop_reason: int | str | None) -> None:
        """End one sequence from outside: its text has a stop string."""
        group, _ = self.roster.member(seq.seq_id)
        self.roster.end(seq, SequenceStatus.FINISHED_STOPPED, stop_reason)
        self._forget_if_finished(group)

    @property
    def has_unfinished(self) -> bool:
        """Whether there are requests that have not ended."""
        return len(self.roster) > 0

    @property
    def unfinished_ids(self) -> list[str]:
        """Ids of the requests that have not ended, in order of arrival."""
        return self.roster.request_ids

    # -- one step ------------------------------------------------------------------------------------------------

    @property
    def can_plan(self) -> bool:
        """Whether `plan` may be called now: every plan is applied, or the steps in flight allow planning ahead."""
        return self._lookahead.can_plan

    def plan(self) -> StepPlan:
        """The next plan; empty if there is nothing to do, or the running step's result is needed first."""
        if self._lookahead.is_ahead:
            self._slide()
        self.block_space.merge_duplicates()
        self._lookahead.begin(self.roster.find_member)
        share = self._lookahead.share(self._num_candidates)
        if self.guesser is not None:
            self.guesser.begin([seq for group in self.running for seq in group.unfinished])
        builder = PlanBuilder(self.limits, self.block_space, self.roster, self._num_spare_draws, share, self.guesser)
        builder.adapters = self.waiting.assign()
        self._make_way(builder)
        if not self._is_chunked:
            self._plan_prefill_first(builder)
        elif self._plan_running(builder):
            self._admit(builder)
        plan = builder.complete()
        self._lookahead.add(plan, builder.reads_draws, builder.is_blocked)
        return plan

    def apply(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Append the accepted tokens, and end sequences that are done. Returns `take_outgrown`'s updates, then one for
        each token, in plan order. Draws of sequences that have ended since the plan was made are ignored.
        """
        outgrown = self.take_outgrown()
        self._lookahead.remove(plan)
        self.preemption.observe(plan, result)
        updates = self._intake.take(plan, result, self._clock())
        self._forget_finished(updates)
        if not self._lookahead.is_ahead:  # else a plan in flight holds blocks that have left the window since
            self._slide()
        return outgrown + updates

    def take_outgrown(self) -> list[SequenceUpdate]:
        """The ends of groups that a plan found too large for the pool. They need no step's result."""
        updates = self._intake.take_outgrown()
        self._forget_finished(updates)
        return updates

    # -- planning ------------------------------------------------------------------------------------------------

    def _slide(self) -> None:
        """Free the blocks that have left their sequences' windows."""
        if self.block_space.has_windows:
            for group in self.running:
                for seq in group.unfinished:
                    self.block_space.slide(seq)

    def _plan_running(self, builder: PlanBuilder) -> bool:
        """Give the running groups their tokens. Returns False if blocks were short; then no group may be admitted."""
        num_preemptions = self.preemption.num_preemptions
        # Every running sequence advances in every step: its token is reserved before a long prompt takes the budget.
        live = [group.unfinished for group in self.running]
        reserved = sum(map(len, live))
        is_roomy = self.block_space.has_slots(reserved)
        if not is_roomy and builder.share is not None and not self._lookahead.is_ahead:
            # Later plans run the sequences that this one skips, and may not preempt for them.
            while len(self.running) > 1 and not self.block_space.can_append_slots(list(chain(*live))):
                self._preempt(self.running[-1], builder)
                live.pop()
        num_planned = 0
        while num_planned < len(self.running):  # groups leave at the end, so `live` stays aligned
            group, seqs = self.running[num_planned], live[num_planned]
            if not is_roomy and not builder.passes_over(seqs):
                room = self._make_room(group, seqs, builder)
                if room is Room.BLOCKED:
                    builder.is_blocked = True
                    return False
                if room is Room.GONE:
                    continue
            reserved -= len(seqs)
            builder.add(group, seqs, reserved)
            num_planned += 1
        return self.preemption.num_preemptions == num_preemptions

    def _plan_prefill_first(self, builder: PlanBuilder) -> None:
        """Plan whole prompts, or decodes. A group that is swapped in has its prompt, so it joins the decodes."""
        now = self._clock()
        if self._delay.is_over(self.waiting.peek(), now) or not self.running:
            self._admit(builder, only=self.waiting)
        if builder.spans:
            self._delay.begin(now)
        elif self._plan_running(builder):
            self._admit(builder, only=self.swapped)

    def _make_room(self, group: SequenceGroup, seqs: list[Sequence], builder: PlanBuilder) -> Room:
        """Make room for the next tokens of each of the group's sequences, preempting groups from the end."""
        while not self.block_space.can_append_slots(seqs, max(seq.num_at_once for seq in seqs)):
            if self._lookahead.is_ahead:
                return Room.BLOCKED
            victim = self.running[-1]
            if victim is group and len(self.running) == 1:
                # It is alone, and the pool is too small for it: waiting would not help.
                self.running.pop()
                self._intake.end_outgrown(group)
            else:
                self._preempt(victim, builder)
            if victim is group:
                return Room.GONE
        return Room.OK

    def _num_candidates(self) -> int:
        """Sequences that may run, at most."""
        num_running = sum(group.num_seqs for group in self.running)
        return min(num_running + len(self.waiting) + len(self.swapped), self.limits.max_num_seqs)

    def _num_spare_draws(self) -> int:
        """Draws of a step that no running sequence can need. 0 while requests wait: those come first."""
        if self.waiting or self.swapped:
            return 0
        return self.limits.max_num_seqs - sum(group.num_seqs for group in self.running)

    def _admission(self, queue: GroupQueue, group: SequenceGroup) -> AllocStatus:
        """Whether the queue's first group can run now."""
        num_left = self.limits.max_num_seqs - sum(g.num_seqs for g in self.running)
        status = self.block_space.can_swap_in(group) if queue is self.swapped else self.block_space.can_allocate(group)
        if status is AllocStatus.OK and group.num_seqs > num_left:
            return AllocStatus.LATER
        return status

    def _admit(self, builder: PlanBuilder, only: GroupQueue | None = None) -> None:
        """Move groups from the queues to running, in order, while budget, sequences and blocks last.

        No prompt is computed before an older group that is swapped out. `only`: stop where the other queue is next.
        """
        while builder.budget > 0 and (first := first_in_order(self.waiting, self.swapped, self.order)) is not None:
            queue, group = first
            if only is not None and queue is not only:
                return
            status = self._admission(queue, group)
            # Without chunking a prompt goes in one piece; the config makes sure that the first one of a step fits.
            is_too_long = only is self.waiting and builder.spans and len(group.unfinished[0]) > builder.budget
            if status is AllocStatus.LATER or is_too_long or builder.passes_over(group.unfinished):
                return
            queue.pop()
            if status is AllocStatus.NEVER:
                self._intake.end_outgrown(group)
                continue
            if queue is self.swapped:
                builder.swap_in.extend(self.block_space.swap_in(group))
            else:
                self._allocate(group)
            for seq in group.unfinished:
                seq.status = SequenceStatus.RUNNING
            bisect.insort(self.running, group, key=self.order.key)
            builder.add(group, group.unfinished)

    def _allocate(self, group: SequenceGroup) -> None:
        num_cached = self.block_space.allocate(group)
        if group.num_cached_tokens is None:
            group.num_cached_tokens = max(num_cached - group.seqs[0].num_encoder_slots, 0)
            group.metrics.first_scheduled_time = self._clock()
            self.stats.prompt_tokens += len(group.request.prompt_token_ids)

    # -- preemption and ends -------------------------------------------------------------------------------------

    def _make_way(self, builder: PlanBuilder) -> None:
        """Preempt running groups of lower priority while the first in order cannot be admitted."""
        first = first_in_order(self.waiting, self.swapped, self.order)
        if first is None:
            return
        priority = self.order.key(first[1])[0]
        while self.running and self.order.key(self.running[-1])[0] > priority:
            if self._admission(*first) is not AllocStatus.LATER:
                return
            if self._lookahead.is_ahead:
                builder.is_blocked = True
                return
            self._preempt(self.running[-1], builder)

    def _preempt(self, group: SequenceGroup, builder: PlanBuilder) -> None:
        """Free all device blocks of the group, and queue it again in its old place."""
        self.running.remove(group)
        action = self.preemption.choose(
            self.block_space.can_swap_out(group),
            self.block_space.num_held_blocks(group),
            sum(seq.num_computed_tokens for seq in group.unfinished),
        )
        if action == "swap":
            builder.swap_out.extend(self.block_space.swap_out(group))
            for seq in group.unfinished:
                seq.status = SequenceStatus.SWAPPED
            self.swapped.push(group)
            return
        self._requeue(group)

    def evict_all(self) -> None:
        """Free the blocks of all groups; they are computed again later. Plans in flight get no result."""
        self._lookahead.clear()
        groups, self.running = [*self.running, *self.swapped], []
        for group in groups:
            if group in self.swapped:
                self.swapped.remove(group)
            self._requeue(group)

    def _requeue(self, group: SequenceGroup) -> None:
        """Queue the group again, to be computed from the start."""
        for seq in group.unfinished:
            self.block_space.release(seq)
            if self.guesser is not None:
                self.guesser.forget(seq)
            seq.drop_pending()
            seq.status = SequenceStatus.WAITING
        group.forget_partial_prompt()
        self.waiting.push(group)

    def _forget_finished(self, updates: list[SequenceUpdate]) -> None:
        for group in {id(update.group): update.group for update in updates if update.is_end}.values():
            self._forget_if_finished(group)

    def _forget_if_finished(self, group: SequenceGroup) -> None:
        if not group.is_finished or self.roster.find(group.request_id) is not group:
            return
        group.metrics.finished_time = self._clock()
        self.waiting.leave(group)
        for queue in (self.running, self.waiting, self.swapped):
            if group in queue:
                queue.remove(group)
        self.roster.forget(group)
