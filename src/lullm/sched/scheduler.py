"""The scheduler: `plan()` says what the next step computes, `apply()` takes in what it found.

There is no prefill phase and no decode phase. Every sequence has tokens, and a counter of those that are computed;
each step gives the sequences a share of the token budget so that the counters catch up. A sequence whose counter
reaches its end gets one more token drawn. A chunk of a prompt, a prefix-cache hit, one decoded token and the
recomputation after a preemption are the same thing.
"""

import bisect
from collections.abc import Callable
from dataclasses import dataclass

from lullm.errors import InvalidRequestError
from lullm.kv.block_space import AllocStatus, BlockSpaceManager
from lullm.sched.queue import WaitingQueue
from lullm.types.outputs import RequestMetrics
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


class Scheduler:
    """Continuous batching over a waiting queue and the running groups, with preemption by recomputation.

    Running groups stand in the order of the waiting queue's keys, so the last one is always the right victim and no
    group that a plan already holds is ever preempted in the same step. `plan` moves the counters: a plan is a promise
    that the step will run, so `apply` must follow with its result.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        block_space: BlockSpaceManager,
        policy: str = "fcfs",
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.limits = limits
        self.block_space = block_space
        self.stats = SchedulerStats()
        self.running: list[SequenceGroup] = []
        self.waiting = WaitingQueue("priority" if policy == "priority" else "fcfs")
        self._clock = clock
        self._groups: dict[str, SequenceGroup] = {}
        self._by_seq: dict[int, tuple[SequenceGroup, Sequence]] = {}
        self._num_seqs_made = 0
        self._capped: list[SequenceUpdate] = []

    # -- requests come and go ------------------------------------------------------------------------------------

    def add(self, request: GenerateRequest) -> SequenceGroup:
        """Queue a request.

        Raises:
            InvalidRequestError: it can never run under these limits, or its id is taken.
        """
        if request.request_id in self._groups:
            raise InvalidRequestError(f"request id {request.request_id!r} is already in use", "request_id")
        params = request.params
        if params.num_sequences > self.limits.max_num_seqs:
            name = "n" if params.best_of is None else "best_of"
            raise InvalidRequestError(
                f"{name}={params.num_sequences} is above the {self.limits.max_num_seqs} sequences that may run at once "
                "(max_num_seqs)",
                name,
            )
        group = SequenceGroup(request, [], RequestMetrics(request.arrival_time))
        self._add_sequence(group, list(request.prompt_token_ids))
        required = self.block_space.num_required_blocks(group)
        if required > self.block_space.num_blocks:
            self._by_seq.pop(group.seqs[0].seq_id)
            raise InvalidRequestError(
                f"the request needs {required} KV blocks for its prompt of {len(request.prompt_token_ids)} tokens, the "
                f"cache has {self.block_space.num_blocks}; shorten the prompt or give the cache more memory "
                "(kv_cache_memory_bytes)",
                "prompt",
            )
        self._groups[request.request_id] = group
        self.waiting.register(group)
        self.waiting.push(group)
        return group

    def abort(self, request_id: str) -> SequenceGroup | None:
        """End a request and free its blocks at once; None if there is no such request (any more)."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        for seq in group.unfinished:
            self._end(seq, SequenceStatus.FINISHED_ABORTED)
        self._forget_if_finished(group)
        return group

    def finish(self, seq: Sequence, stop_reason: int | str | None) -> None:
        """End one sequence from outside: its text has reached a stop string."""
        group, _ = self._by_seq[seq.seq_id]
        self._end(seq, SequenceStatus.FINISHED_STOPPED, stop_reason)
        self._forget_if_finished(group)

    @property
    def has_unfinished(self) -> bool:
        return bool(self._groups)

    @property
    def unfinished_ids(self) -> list[str]:
        return list(self._groups)

    # -- one step ------------------------------------------------------------------------------------------------

    def plan(self) -> StepPlan:
        """What to compute next; an empty plan if there is nothing to do."""
        spans: list[Span] = []
        copies: list[BlockPair] = []
        budget = self.limits.max_num_batched_tokens
        num_preemptions = self.stats.preemptions
        # Every running sequence moves in every step: its token is reserved before a long prompt takes the budget.
        reserved = sum(len(group.unfinished) for group in self.running)
        index = 0
        while index < len(self.running):
            group = self.running[index]
            seqs = group.unfinished
            if not self._ensure_slots(group, seqs):
                continue
            reserved -= len(seqs)
            budget -= self._plan_group(group, seqs, budget - reserved, spans, copies)
            index += 1
        if self.stats.preemptions == num_preemptions:
            self._admit(budget, spans, copies)
        return StepPlan(spans, blocks_to_copy=copies)

    def apply(self, plan: StepPlan, result: StepResult) -> list[SequenceUpdate]:
        """Append the drawn tokens, end what has ended; one update per drawn token, in plan order."""
        now = self._clock()
        updates, self._capped = self._capped, []
        for seq_id, rows in result.prompt_logprobs.items():
            self._by_seq[seq_id][0].prompt_logprobs.extend(rows)
        for drawn in result.tokens:
            group, seq = self._by_seq[drawn.seq_id]
            if drawn.token_id == NO_TOKEN:
                self._end(seq, SequenceStatus.FINISHED_ABORTED, "no token can be drawn from the model's logits")
                updates.append(SequenceUpdate(group, seq, None))
                continue
            seq.token_ids.append(drawn.token_id)
            self.stats.generation_tokens += 1
            if group.metrics.first_token_time is None:
                group.metrics.first_token_time = now
            group.metrics.last_token_time = now
            self._end_if_done(group, seq, drawn.token_id)
            updates.append(SequenceUpdate(group, seq, drawn))
        for group in {id(u.group): u.group for u in updates}.values():
            self._forget_if_finished(group)
        return updates

    # -- planning ------------------------------------------------------------------------------------------------

    def _ensure_slots(self, group: SequenceGroup, seqs: list[Sequence]) -> bool:
        """Make room for the group's next tokens, preempting from the end; False if the group itself had to go."""
        while not self.block_space.can_append_slots(seqs):
            victim = self.running[-1]
            if victim is group and len(self.running) == 1:
                # Alone, and the pool is too small for it: waiting would not help.
                self.running.pop()
                self._cap(group)
            else:
                self._preempt(victim)
            if victim is group:
                return False
        return True

    def _plan_group(
        self, group: SequenceGroup, seqs: list[Sequence], budget: int, spans: list[Span], copies: list[BlockPair]
    ) -> int:
        """Spans for the group's sequences within `budget` tokens; the number of tokens used."""
        used = 0
        leader = seqs[0]
        shared_len = leader.prompt_len - leader.prompt_len % self.block_space.block_size
        for seq in seqs:
            # After a preemption the others share the leader's prompt blocks, so they wait until it has computed them.
            # The same step is early enough: within a layer all KV is written before any attention reads it.
            if seq is not leader and leader.num_computed_tokens < shared_len:
                continue
            num_tokens = min(seq.num_uncomputed_tokens, budget - used)
            if num_tokens <= 0:
                break
            copies.extend(self.block_space.append_slots(seq))
            spans.append(self._span(group, seq, num_tokens))
            used += num_tokens
        return used

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
            drawing = [seq, *(self._fork(group, seq) for _ in range(group.num_unborn))]
        return Span(
            seq_id=seq.seq_id,
            start=start,
            token_ids=seq.token_ids[start:end],
            block_ids=self.block_space.block_ids(seq),
            draws=[self._draw(group, s) for s in drawing],
            prompt_targets=targets,
            num_prompt_logprobs=params.prompt_logprobs or 0,
        )

    def _draw(self, group: SequenceGroup, seq: Sequence) -> Draw:
        request = group.request
        return Draw(
            seq_id=seq.seq_id,
            seq_index=seq.index,
            params=request.params,
            seed=request.seed,
            token_ids=seq.token_ids,
            prompt_len=seq.prompt_len,
            end_token_ids=request.end_token_ids + tuple(request.params.stop_token_ids or ()),
            bad_words_ids=request.bad_words_ids,
        )

    def _admit(self, budget: int, spans: list[Span], copies: list[BlockPair]) -> None:
        """Move groups from the queue to running, in order, while budget, seats and blocks last."""
        seats = self.limits.max_num_seqs - sum(group.num_seats for group in self.running)
        while budget > 0:
            group = self.waiting.peek()
            if group is None or group.num_seats > seats:
                return
            status = self.block_space.can_allocate(group)
            if status is AllocStatus.LATER:
                return
            self.waiting.pop()
            if status is AllocStatus.NEVER:
                self._cap(group)
                continue
            num_cached = self.block_space.allocate(group)
            if group.num_cached_tokens is None:
                group.num_cached_tokens = num_cached
                group.metrics.first_scheduled_time = self._clock()
                self.stats.prompt_tokens += group.seqs[0].prompt_len
            for seq in group.unfinished:
                seq.status = SequenceStatus.RUNNING
            bisect.insort(self.running, group, key=self.waiting.key)
            seats -= group.num_seats
            budget -= self._plan_group(group, group.unfinished, budget, spans, copies)

    # -- preemption and ends -------------------------------------------------------------------------------------

    def _preempt(self, group: SequenceGroup) -> None:
        """Take the group's blocks away, all of them, and put it back into the queue under its old place."""
        self.running.remove(group)
        for seq in group.unfinished:
            self.block_space.release(seq)
            seq.status = SequenceStatus.WAITING
        if len(group.prompt_logprobs) < group.seqs[0].prompt_len - 1:
            group.prompt_logprobs.clear()
        group.num_preemptions += 1
        self.stats.preemptions += 1
        self.waiting.push(group)

    def _cap(self, group: SequenceGroup) -> None:
        """End a group that has grown beyond the whole pool; its updates go out with the next `apply`."""
        for seq in group.unfinished:
            self._end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED)
            self._capped.append(SequenceUpdate(group, seq, None))

    def _end_if_done(self, group: SequenceGroup, seq: Sequence, token_id: int) -> None:
        params = group.request.params
        if seq.output_len >= params.min_tokens:
            if token_id in group.request.end_token_ids:
                return self._end(seq, SequenceStatus.FINISHED_STOPPED)
            if params.stop_token_ids and token_id in params.stop_token_ids:
                return self._end(seq, SequenceStatus.FINISHED_STOPPED, token_id)
        if seq.output_len == params.max_tokens or len(seq) >= self.limits.max_model_len:
            self._end(seq, SequenceStatus.FINISHED_LENGTH_CAPPED)

    def _end(self, seq: Sequence, status: SequenceStatus, stop_reason: int | str | None = None) -> None:
        seq.status = status
        seq.stop_reason = stop_reason
        self.block_space.free(seq)

    def _forget_if_finished(self, group: SequenceGroup) -> None:
        if not group.is_finished or group.request_id not in self._groups:
            return
        group.metrics.finished_time = self._clock()
        del self._groups[group.request_id]
        for seq in group.seqs:
            del self._by_seq[seq.seq_id]
        if group in self.running:
            self.running.remove(group)
        elif group in self.waiting:
            self.waiting.remove(group)
        self.waiting.forget(group)

    # -- sequences -----------------------------------------------------------------------------------------------

    def _add_sequence(self, group: SequenceGroup, token_ids: list[int]) -> Sequence:
        seq = Sequence(self._num_seqs_made, len(group.seqs), token_ids, len(group.request.prompt_token_ids))
        self._num_seqs_made += 1
        group.seqs.append(seq)
        self._by_seq[seq.seq_id] = (group, seq)
        return seq

    def _fork(self, group: SequenceGroup, parent: Sequence) -> Sequence:
        child = self._add_sequence(group, parent.token_ids.copy())
        child.status = parent.status
        child.num_computed_tokens = parent.num_computed_tokens
        self.block_space.fork(parent, child)
        return child
