"""A worker without a model: it keeps which token stands in which slot and checks that attention would see the truth."""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.cache_group import CacheGroup
from lullm.sched.preemption import PreemptionPolicy
from lullm.sched.scheduler import Scheduler, SchedulerLimits, SequenceUpdate
from lullm.types.layer_kind import FullAttention, SlidingWindow
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import PENDING_TOKEN, Draw, DrawnToken, Span, StepPlan, StepResult


class PagedMemory:
    """Slots hold (position, token) instead of keys and values; a block nobody wrote holds nothing.

    A slot's content also names all tokens before it (a running hash), as a real key does through attention: KV that
    was computed behind another prefix is not the same KV.
    """

    def __init__(
        self,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        choose: Callable[[Draw], int],
        window: int | None = None,
    ):
        self.block_size = block_size
        self.window = window
        self.slots: list[list[int | None]] = [[None] * block_size for _ in range(num_blocks)]
        self.host_slots: list[list[int | None]] = [[None] * block_size for _ in range(num_host_blocks)]
        self.choose = choose
        self.sequences: dict[int, list[int]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        for device, host in plan.blocks_to_swap_out:
            self.host_slots[host] = self.slots[device].copy()
        for host, device in plan.blocks_to_swap_in:
            self.slots[device] = self.host_slots[host].copy()
        for source, destination in plan.blocks_to_copy:
            self.slots[destination] = self.slots[source].copy()
        for span in plan.spans:  # all writes of a layer come before any attention
            history = self._history(span.seq_id, span.start, list(span.token_ids))
            for position in range(span.start, span.end):
                block_id = span.block_ids[position // self.block_size]
                assert block_id >= 0, f"sequence {span.seq_id} has no block at {position}"
                self.slots[block_id][position % self.block_size] = history[position]
        tokens = []
        for span in plan.spans:
            history = self._history(span.seq_id, span.start, list(span.token_ids))
            first = 0 if self.window is None else max(span.start + 1 - self.window, 0)
            for position in range(first, span.end):
                block_id = span.block_ids[position // self.block_size]
                assert block_id >= 0, f"sequence {span.seq_id} has no block at {position}"
                found = self.slots[block_id][position % self.block_size]
                assert found == history[position], f"sequence {span.seq_id} would attend to foreign KV at {position}"
            for draw in span.draws:
                assert len(draw.token_ids) == span.end
                tokens.append(self.draw(draw))
        return StepResult(tokens, {s.seq_id: [[(t, 0.0, 1)] for t in s.prompt_targets] for s in plan.spans})

    def draw(self, draw: Draw) -> DrawnToken:
        if draw.params.logprobs is None:
            return DrawnToken(draw.seq_id, self.choose(draw))
        # Beams: a made-up model over four tokens, a function of the sequence alone.
        rng = random.Random(hash(tuple(draw.token_ids)))
        ranked = sorted(((t, -rng.random() * 3, 1) for t in range(4)), key=lambda offer: -offer[1])
        return DrawnToken(draw.seq_id, ranked[0][0], ranked)

    def _history(self, seq_id: int, start: int, token_ids: list[int]) -> list[int]:
        """The running hash at every position up to the span's end."""
        known = self.sequences[seq_id][:start] + token_ids
        running, history = 0, []
        for token_id in known:
            running = hash((running, token_id))
            history.append(running)
        return history


class Simulation:
    """A scheduler over a `PagedMemory`, with every budget and conservation law checked at each step."""

    def __init__(
        self,
        num_blocks: int = 64,
        block_size: int = 4,
        max_num_seqs: int = 8,
        max_num_batched_tokens: int = 32,
        max_model_len: int = 64,
        enable_prefix_caching: bool = True,
        policy: str = "fcfs",
        seed: int = 0,
        watermark: float = 0.01,
        num_host_blocks: int = 0,
        preemption: PreemptionPolicy | None = None,
        window: int | None = None,
        max_in_flight: int = 1,
        **options: object,
    ):
        self.limits = SchedulerLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
        self.window = window
        kind = FullAttention() if window is None else SlidingWindow(window)
        self.block_space = BlockSpaceManager(
            num_blocks, block_size, watermark, enable_prefix_caching, num_host_blocks, groups=[CacheGroup(kind, (0,))]
        )
        self.now = 0.0
        self.scheduler = Scheduler(self.limits, self.block_space, policy, lambda: self.now, preemption, **options)
        self.memory = PagedMemory(num_blocks, num_host_blocks, block_size, self._choose, window)
        self.random = random.Random(seed)
        self.plans: list[StepPlan] = []
        self._max_in_flight = max_in_flight
        # Plans that have not run, each with a copy of what it held when it was made and of its sequences' tokens.
        self._in_flight: deque[tuple[StepPlan, StepPlan, dict[int, list[int]]]] = deque()
        self._last_drawn: dict[int, int] = {}
        self.num_pending = 0

    def add(self, request_id: str, prompt: list[int], priority: int = 0, end: int | None = None, **params: object):
        return self.scheduler.add(
            GenerateRequest(
                request_id=request_id,
                prompt=None,
                prompt_token_ids=prompt,
                params=SamplingParams(**params),
                seed=0,
                arrival_time=self.now,
                priority=priority,
                end_token_ids=() if end is None else (end,),
            )
        )

    def step(self) -> list[SequenceUpdate]:
        while len(self._in_flight) < self._max_in_flight and self.scheduler.can_plan:
            plan = self.scheduler.plan()
            self.plans.append(plan)
            self._check(plan)
            if plan.is_empty and self._in_flight:
                break
            tokens = {seq.seq_id: list(seq.token_ids) for group in self.scheduler.running for seq in group.seqs}
            self._in_flight.append((plan, replace(plan, spans=[_copy(span) for span in plan.spans]), tokens))
            if self.window is not None:
                self._check_window(plan)
        self.now += 1.0
        # Late, as on a device: the next plan has been made already, and its placeholders stand in the live sequences.
        plan, copied, tokens = self._in_flight.popleft()
        for span in copied.spans:
            self._fill_in(span.seq_id, span.token_ids)
            for draw in span.draws:
                self._fill_in(span.seq_id, draw.token_ids)
        for seq_id, ids in tokens.items():
            self._fill_in(seq_id, ids)
        self.memory.sequences |= tokens
        result = self.memory.execute(copied)
        self._last_drawn = {drawn.seq_id: drawn.token_id for drawn in result.tokens}
        updates = self.scheduler.apply(plan, result)
        self.block_space.check_conservation()
        return updates

    def _fill_in(self, seq_id: int, token_ids: list[int]) -> None:
        assert PENDING_TOKEN not in token_ids[:-1]
        if token_ids[-1] == PENDING_TOKEN:
            token_ids[-1] = self._last_drawn[seq_id]
            self.num_pending += 1

    def run(self, max_steps: int = 10_000) -> list[SequenceUpdate]:
        """Step until nothing is left; the updates that ended a sequence, in order."""
        ends = []
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                return ends
            ends += [update for update in self.step() if update.seq.is_finished]
        raise AssertionError(f"requests still unfinished after {max_steps} steps")

    def _choose(self, draw: Draw) -> int:
        # A function of the sequence alone, as a seeded draw is: preemption and chunking must not change it.
        return random.Random(hash((tuple(draw.token_ids), draw.seq_index))).randrange(2)

    def _check_window(self, plan: StepPlan) -> None:
        """A sequence that decodes holds the blocks of its window and no more."""
        for span in plan.spans:
            if len(span.token_ids) == 1:
                num_held = sum(block_id >= 0 for block_id in span.block_ids)
                assert num_held <= (self.window - 1) // self.block_space.block_size + 2

    def _check(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert sum(group.num_seats for group in self.scheduler.running) <= self.limits.max_num_seqs
        assert len({span.seq_id for span in plan.spans}) == len(plan.spans)
        written = [
            (span.block_ids[p // self.block_space.block_size], p % self.block_space.block_size)
            for span in plan.spans
            for p in range(span.start, span.end)
        ]
        assert len(set(written)) == len(written), "two sequences write the same slot"


def _copy(span: Span) -> Span:
    """The span as it is now."""
    draws = [replace(draw, token_ids=list(draw.token_ids)) for draw in span.draws]
    return replace(span, token_ids=list(span.token_ids), block_ids=list(span.block_ids), draws=draws)
