"""A worker without a model: it keeps which token stands in which slot and checks that attention would see the truth."""

import random
import struct
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from kit.sched.plans import carried_tokens

from lullm.config.option.speculation import Speculation
from lullm.kv.block_space import BlockSpaceManager
from lullm.kv.cache_group import CacheGroup
from lullm.sched.guess.draft_model import ModelGuesses
from lullm.sched.guess.guesser import Guesser
from lullm.sched.guess.ngram import NgramGuesses
from lullm.sched.plan_builder import SchedulerLimits, SchedulingRules
from lullm.sched.preemption import PreemptionPolicy
from lullm.sched.scheduler import Scheduler, SequenceUpdate
from lullm.types.draw import Draw
from lullm.types.layer_kind import FullAttention, RecurrentState, SlidingWindow
from lullm.types.packed import unpack
from lullm.types.pooling.params import Pooling, PoolingKind
from lullm.types.request import NO_TOKENS, GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.sequence import SequenceGroup
from lullm.types.step import PENDING_TOKEN, DrawnToken, PooledPart, Span, StepPlan, StepResult
from lullm.types.step_codec import decode_plan, decode_result, encode_plan, encode_result
from lullm.types.vision.tile import TilePlace
from lullm.worker.draft.paired_steps import PairedSteps

Content = tuple[int, ...] | None
"""Of a slot: (cache group, running hash of the tokens up to its own); None: never written."""


@dataclass(frozen=True)
class State:
    """In place of a window: a recurrent group, whose state takes so many blocks."""

    num_blocks: int


def cache_group(window: "int | State | None", layer: int) -> CacheGroup:
    if isinstance(window, State):
        return CacheGroup(RecurrentState(((window.num_blocks,),)), (layer,), window.num_blocks)
    return CacheGroup(FullAttention() if window is None else SlidingWindow(window), (layer,))


class PagedMemory:
    """Slots hold (position, token) instead of keys and values; an unwritten block holds nothing.

    A slot's content also names all tokens before it (a running hash), as a real key does through attention: KV that
    was computed behind another prefix is not the same KV. It names its cache group too: other layers have other keys.
    The blocks of a recurrent state hold the running hash of all tokens that it has taken in.
    `windows`: by group, the tokens that a token sees; None: all before it; `State`: a recurrent group.
    """

    def __init__(
        self,
        num_blocks: int,
        num_host_blocks: int,
        block_size: int,
        choose: Callable[[Draw, list[int]], int],
        windows: Sequence[int | State | None] = (None,),
    ):
        self.block_size = block_size
        self.windows = windows
        self.slots: list[list[Content]] = [[None] * block_size for _ in range(num_blocks)]
        self.host_slots: list[list[Content]] = [[None] * block_size for _ in range(num_host_blocks)]
        self.choose = choose
        self.sequences: dict[int, list[int]] = {}
        self.names: dict[int, int] = {}  # sequence -> what its KV depends on beside tokens
        self.drawn: dict[tuple[int, int], int] = {}  # (sequence, position) -> the token that was drawn for it

    def wipe(self) -> None:
        """Forget the contents of all slots."""
        for slots in (*self.slots, *self.host_slots):
            slots[:] = [None] * self.block_size

    def execute(self, plan: StepPlan) -> StepResult:
        for device, host in plan.blocks_to_swap_out:
            self.host_slots[host] = self.slots[device].copy()
        for host, device in plan.blocks_to_swap_in:
            self.slots[device] = self.host_slots[host].copy()
        for source, destination in plan.blocks_to_copy:
            self.slots[destination] = self.slots[source].copy()
        spans = [(span, [unpack(ids) for ids in span.block_ids], self._tokens(span, plan)) for span in plan.spans]
        histories = [running_hashes(tokens, self.names.get(span.seq_id, 0)) for span, _, tokens in spans]
        for (span, tables, _), history in zip(spans, histories, strict=True):
            for group, (blocks, window) in enumerate(zip(tables, self.windows, strict=True)):
                if isinstance(window, State):
                    self._move_on(span, group, blocks, window, history)
                    continue
                for position in range(span.start, span.end):  # all writes of a layer come before any attention
                    self._slots(blocks, position)[position % self.block_size] = group, history[position]
        drawn = []
        for (span, tables, tokens), history in zip(spans, histories, strict=True):
            for group, (blocks, window) in enumerate(zip(tables, self.windows, strict=True)):
                if not isinstance(window, State):
                    self._attend(span, group, blocks, 0 if window is None else max(span.start + 1 - window, 0), history)
            drawn += [self._draw(draw, tokens[: span.start + draw.row + 1]) for draw in span.draws]
        targets = {span.seq_id: unpack(span.prompt_targets) for span in plan.spans if span.prompt_targets}
        prompt_logprobs = {seq_id: [((t, 0.0, 1),) for t in ids] for seq_id, ids in targets.items()}
        pooled = [self._pool(span, tokens) for (span, _, tokens) in spans if span.pooled_rows]
        return StepResult(drawn, prompt_logprobs, pooled=pooled)

    def _pool(self, span: Span, tokens: list[int]) -> PooledPart:
        """(1, position, token) of the rows, or their sum."""
        first, end = (span.start + row for row in span.pooled_rows)
        assert span.start <= first < end <= span.end and not span.draws
        rows = [(1.0, position, tokens[position]) for position in range(first, end)]
        if span.sums_pooled:
            rows = [tuple(map(sum, zip(*rows, strict=True)))]
        return PooledPart(span.seq_id, end - first, b"".join(struct.pack("3f", *row) for row in rows))

    def _move_on(self, span: Span, group: int, blocks: list[int], state: State, history: list[int]) -> None:
        """Take the span's tokens into a state."""
        assert len(blocks) == state.num_blocks
        for part, block_id in enumerate(blocks):
            slots = self.slots[block_id]
            if span.start:
                expected = group, part, history[span.start - 1]
                assert slots[0] == expected, f"sequence {span.seq_id} would go on from a foreign state"
            slots[0] = group, part, history[span.end - 1]

    def _attend(self, span: Span, group: int, blocks: list[int], first: int, history: list[int]) -> None:
        """Read the keys from `first` to the span's end."""
        size = self.block_size
        read: list[Content] = []
        for position in range(first // size * size, span.end, size):
            read += self._slots(blocks, position)
        found = read[first % size : first % size + span.end - first]
        for position, (content, expected) in enumerate(zip(found, history[first : span.end], strict=True), first):
            assert content == (group, expected), f"sequence {span.seq_id} would attend to foreign KV at {position}"

    def _draw(self, draw: Draw, tokens: list[int]) -> DrawnToken:
        """The token behind `tokens`."""
        assert unpack(draw.token_ids) == carried_tokens(draw.params, tokens, draw.output_len)
        if draw.params.num_logprobs is None:
            drawn = DrawnToken(draw.seq_id, self.choose(draw, tokens))
        else:  # Beams: a made-up model over four tokens, a function of the sequence alone.
            rng = random.Random(hash(tuple(tokens)))
            ranked = sorted(((t, -rng.random() * 3, 1) for t in range(4)), key=lambda offer: -offer[1])
            drawn = DrawnToken(draw.seq_id, ranked[0][0], tuple(ranked))
        self.drawn[draw.seq_id, len(tokens)] = drawn.token_id
        return drawn

    def _slots(self, blocks: list[int], position: int) -> list[Content]:
        block_id = blocks[position // self.block_size]
        assert block_id >= 0, f"no block at {position}"
        return self.slots[block_id]

    def _tokens(self, span: Span, plan: StepPlan) -> list[int]:
        """All tokens up to the span's end, drafts included, the pending ones filled in."""
        own = [other for other in plan.spans if other.seq_id == span.seq_id and other.start <= span.start]
        tokens = self.sequences[span.seq_id][: own[0].start] + [t for other in own for t in unpack(other.token_ids)]
        return [self.drawn[span.seq_id, i] if t == PENDING_TOKEN else t for i, t in enumerate(tokens)]


def token_behind(tokens: list[int], seq_index: int) -> int:
    """The token that is drawn: a function of the sequence alone, as a seeded draw is."""
    return random.Random(hash((tuple(tokens), seq_index))).randrange(2)


class Guesses(NgramGuesses):
    """Up to `most` drafts, of which most are right; or those of `said`, by sequence."""

    def __init__(self, most: int, seed: int):
        self.most, self.random = most, random.Random(seed)
        self.said: dict[int, list[int]] = {}

    def propose(self, seq: Sequence, most: int) -> list[int]:
        if seq.seq_id in self.said:
            return self.said.pop(seq.seq_id)[:most]
        tokens = list(seq.token_ids)
        for _ in range(min(self.random.randrange(self.most + 1), most)):
            token_id = token_behind(tokens, seq.index)
            tokens.append(token_id if self.random.random() < 0.8 else 1 - token_id)
        return tokens[len(seq) :]

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        assert not seq.is_finished


@dataclass(frozen=True)
class Launched:
    """A launched step, as a worker's runner gives it."""

    run: Callable[[StepPlan], StepResult]
    plan: StepPlan

    def result(self) -> StepResult:
        return self.run(self.plan)


class DraftMemory(PagedMemory):
    """The draft model's part of the same blocks. It must have seen all that it attends to; most guesses are right.

    Attributes:
        num_seen: tokens that it has computed.
    """

    num_seen = 0

    def launch(self, plan: StepPlan) -> Launched:
        return Launched(self.execute, plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_seen += plan.num_tokens
        for span in plan.spans:  # guesses of this step, too
            tokens = self.sequences[span.seq_id]
            self.sequences[span.seq_id] = tokens[: span.start] + unpack(span.token_ids) + tokens[span.end :]
        return super().execute(plan)


class TwoMemories(PagedMemory):
    """A worker with a draft model: both have a part of the same blocks, which `PairedSteps` runs."""

    def __init__(self, draft: DraftMemory, *sizes: Any):
        super().__init__(*sizes)
        self.draft = draft
        self._steps = PairedSteps(self, draft, 0, is_accelerator=False)

    def wipe(self) -> None:
        super().wipe()
        self.draft.wipe()

    def launch(self, plan: StepPlan) -> Launched:
        return Launched(super().execute, plan)

    def execute(self, plan: StepPlan) -> StepResult:
        self.draft.sequences |= {seq_id: list(tokens) for seq_id, tokens in self.sequences.items()}
        self.draft.names = self.names
        return self._steps.launch(plan).result()


def running_hashes(tokens: list[int], name: int = 0) -> list[int]:
    """At every position a hash of all tokens up to it, and of `name`."""
    running, hashes = name, []
    for token_id in tokens:
        running = hash((running, token_id))
        hashes.append(running)
    return hashes


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
        windows: Sequence[int | State | None] = (None,),
        max_in_flight: int = 1,
        most_drafts: int | None = None,
        draft_model: int | None = None,
        **options: object,
    ):
        """`most_drafts`: guesses that this makes up. `draft_model`: guesses of a `DraftMemory`, so many at a time."""
        self.limits = SchedulerLimits(max_num_seqs, max_num_batched_tokens, max_model_len)
        self.windows = windows
        groups = [cache_group(window, layer) for layer, window in enumerate(windows)]
        self.block_space = BlockSpaceManager(
            num_blocks, block_size, watermark, enable_prefix_caching, num_host_blocks, groups=groups
        )
        self.now = 0.0
        is_chunked = options.get("enable_chunked_prefill", True)
        self.is_fair = policy == "fcfs" and is_chunked
        self.runs_all = is_chunked and options.get("feeds_back", True)
        self.guesser: Guesser | None = None if most_drafts is None else Guesses(most_drafts, seed)
        if draft_model is not None:
            how = Speculation(num_speculative_tokens=draft_model, method="draft_model", adaptive=False)
            sizes = max_num_seqs, max_num_batched_tokens, max_model_len
            self.guesser = ModelGuesses(how, self.block_space, 0, *sizes)
        rules = SchedulingRules(policy, max_in_flight=max_in_flight, **options)
        self.scheduler = Scheduler(self.limits, self.block_space, rules, lambda: self.now, preemption, self.guesser)
        self.random = random.Random(seed)
        sizes = num_blocks, num_host_blocks, block_size
        self.memory = PagedMemory(*sizes, self._choose, windows)
        if draft_model is not None:
            self.memory = TwoMemories(DraftMemory(*sizes, self._guess), *sizes, self._choose, windows)
        self.plans: list[StepPlan] = []
        # Plans that have not run, each with its bytes and its sequences' tokens when it was made.
        self._in_flight: deque[tuple[StepPlan, bytes, dict[int, list[int]]]] = deque()
        self.num_pending = 0
        self.preempted: Counter[str] = Counter()  # how often, by request

    def add(
        self,
        request_id: str,
        prompt: list[int],
        priority: int = 0,
        end: int | None = None,
        tiles: tuple[TilePlace, ...] = (),
        cache_salt: str = "",
        adapter_digest: bytes = b"",
        **params: object,
    ):
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
                tiles=tiles,
                cache_salt=cache_salt,
                adapter_digest=adapter_digest,
            )
        )

    def add_pooling(self, request_id: str, prompt: list[int], kind: PoolingKind, priority: int = 0):
        pooling = Pooling("embed", kind, "none")
        return self.scheduler.add(
            GenerateRequest(request_id, None, prompt, NO_TOKENS, 0, self.now, priority, pooling=pooling)
        )

    def step(self) -> list[SequenceUpdate]:
        while self.scheduler.can_plan:
            running = list(self.scheduler.running)
            plan = self.scheduler.plan()
            self.preempted.update(
                group.request_id for group in running if group not in self.scheduler.running and not group.is_finished
            )
            # With priorities a group that made way may come back in the same plan.
            assert self.preempted.total() <= self.scheduler.preemption.num_preemptions
            self.plans.append(plan)
            self._check(plan)
            self._check_progress(plan, running)
            if plan.is_empty:
                break
            seqs = [seq for group in self.scheduler.running for seq in group.seqs]
            tokens = {seq.seq_id: list(seq.token_ids) for seq in seqs}
            self.memory.names |= {seq.seq_id: hash((seq.cache_salt, seq.adapter_digest)) for seq in seqs}
            self._in_flight.append((plan, encode_plan(plan), tokens))
            self._check_windows(plan)
        self.now += 1.0
        return self.take_in() if self._in_flight else self.scheduler.take_outgrown()

    def lose_memory(self) -> None:
        """As a sleep that drops the KV: steps in flight get no result, and no slot keeps what it holds."""
        self._in_flight.clear()
        self.scheduler.evict_all()
        self.block_space.reset_prefix_cache()
        self.memory.wipe()
        self.block_space.check_conservation()
        assert self.block_space.num_used_blocks == self.block_space.num_used_host_blocks == 0

    def drain(self) -> list[SequenceUpdate]:
        """Run the steps in flight."""
        updates = []
        while self._in_flight:
            updates += self.take_in()
        return updates

    def take_in(self) -> list[SequenceUpdate]:
        """Run the oldest step in flight."""
        # Late, as on a device: the next plans have been made already. The worker gets bytes, as one far away does.
        plan, encoded, tokens = self._in_flight.popleft()
        assert encode_plan(plan) == encoded, "a plan does not change"
        received = decode_plan(encoded)
        assert received == plan
        self.num_pending += sum(unpack(span.token_ids)[-1] == PENDING_TOKEN for span in received.spans)
        self.memory.sequences |= tokens
        result = self.memory.execute(received)
        assert decode_result(encode_result(result)) == result
        updates = self.scheduler.apply(plan, result)
        self.block_space.check_conservation()
        if not self._in_flight:
            self._check_lengths()
        return updates

    def run(self, max_steps: int = 10_000) -> list[SequenceUpdate]:
        """Step until nothing is left; the updates that ended a sequence, in order."""
        ends = []
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                return ends
            ends += [update for update in self.step() if update.is_end]
        raise AssertionError(f"requests still unfinished after {max_steps} steps")

    def _choose(self, draw: Draw, tokens: list[int]) -> int:
        return token_behind(tokens, draw.params.seq_index)

    def _guess(self, draw: Draw, tokens: list[int]) -> int:
        token_id = token_behind(tokens, draw.params.seq_index)
        return token_id if self.random.random() < 0.8 else 1 - token_id

    def _check_windows(self, plan: StepPlan) -> None:
        """A sequence that decodes without drafts holds the blocks of its windows and no more."""
        num_spans = Counter(span.seq_id for span in plan.spans)
        for span in plan.spans:
            if num_spans[span.seq_id] > 1:
                continue
            for packed, window in zip(span.block_ids, self.windows, strict=True):
                if span.num_tokens == 1 and isinstance(window, int):
                    num_held = sum(block_id >= 0 for block_id in unpack(packed))
                    assert num_held <= (window - 1) // self.block_space.block_size + 2

    def _check_order(self) -> None:
        """Running groups stand in order. Where nothing but arrival counts, they are the first of all that are here."""
        scheduler, key = self.scheduler, self.scheduler.order.key
        keys = [key(group) for group in scheduler.running]
        assert keys == sorted(keys)
        if self.is_fair and keys:
            assert all(key(group) > keys[-1] for queue in (scheduler.waiting, scheduler.swapped) for group in queue)

    def _check_progress(self, plan: StepPlan, were_running: Sequence[SequenceGroup]) -> None:
        """Every request that runs gets tokens, however long the prompts before it. None takes the place of another."""
        made_way = any(group not in self.scheduler.running and not group.is_finished for group in were_running)
        assert not (self.is_fair and made_way and any(group not in were_running for group in self.scheduler.running))
        if not self.runs_all or self.scheduler._lookahead._holds_up:
            return
        planned = {span.seq_id for span in plan.spans}
        for group in self.scheduler.running:
            if group in were_running and not group.request.params.beam_width:
                leader = group.unfinished[0]
                waits = leader.num_at_once > 1  # for a step with room for all of a picture
                assert leader.seq_id in planned or not leader.num_uncomputed_tokens or waits

    def _check_lengths(self) -> None:
        """No sequence holds blocks behind its last token, such as those of guesses that were wrong."""
        size = self.block_space.block_size
        for group in self.scheduler.running:
            for seq in group.unfinished:
                for ids, window in zip(self.block_space.block_ids(seq), self.windows, strict=True):
                    assert isinstance(window, State) or len(ids) <= -(-len(seq) // size)

    def _check(self, plan: StepPlan) -> None:
        assert plan.num_tokens <= self.limits.max_num_batched_tokens
        assert sum(span.num_tokens for span in plan.draft_spans) <= self.limits.max_num_batched_tokens
        assert sum(len(span.draws) for span in plan.draft_spans) <= self.limits.max_num_seqs
        assert sum(group.num_seqs for group in self.scheduler.running) <= self.limits.max_num_seqs
        assert sum(len(span.draws) for span in plan.spans) <= self.limits.max_num_seqs
        # Prompts that are too long are refused before they come here.
        behind = [span.end for span in plan.spans if span.draws and span.draws[0].output_len]
        assert all(end < self.limits.max_model_len for end in behind), "no token fits there"
        assert len({span.seq_id for span in plan.spans}) == len(list(groupby(plan.spans, lambda span: span.seq_id)))
        for span, behind in pairwise(plan.spans):
            assert span.seq_id != behind.seq_id or (behind.start, behind.num_tokens) == (span.end, 1), "a draft"
        for span in plan.spans:
            _, seq = self.scheduler.roster.member(span.seq_id)
            assert not any(place.geometry.is_mutual and place.start < span.end < place.end for place in seq.tiles), (
                "in a picture"
            )
        self._check_order()
        block_size = self.block_space.block_size
        written = []
        for span in plan.spans:
            for blocks, window in zip(map(unpack, span.block_ids), self.windows, strict=True):
                if isinstance(window, State):
                    written += [(block_id, 0) for block_id in blocks]
                    continue
                written += [(blocks[p // block_size], p % block_size) for p in range(span.start, span.end)]
        assert len(set(written)) == len(written), "two sequences write the same slot"
