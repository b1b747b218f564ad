"""A saturated pool without a model: the real scheduler and block manager, requests of random lengths, instant tokens.

Nothing here depends on the machine's speed: steps are counted, not seconds.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lullm.kv.block_space import BlockSpaceManager
from lullm.sched.plan_builder import SchedulerLimits
from lullm.sched.preemption import PreemptionPolicy
from lullm.sched.scheduler import Scheduler
from lullm.types.draw import Draw
from lullm.types.request import GenerateRequest
from lullm.types.sampling_params import SamplingParams
from lullm.types.step import DrawnToken, StepPlan, StepResult

NUM_SLOTS = 15_700
MAX_MODEL_LEN = 2048
COEFFICIENT_OF_VARIATION = 1.2
# Mean tokens in and out of the two data sets, from the PagedAttention paper (arXiv 2309.06180, figure 11).
MEAN_LENGTHS = {"sharegpt": (161.31, 337.99), "alpaca": (19.31, 58.45)}
NUM_WAITING = 32  # requests that are kept waiting: the pool is always under demand


@dataclass(frozen=True, slots=True)
class Lengths:
    """One request, in tokens."""

    prompt_len: int
    output_len: int


def sample_lengths(dataset: str, num_requests: int, seed: int = 0) -> list[Lengths]:
    """Lognormal lengths with the data set's means, clipped so that a request fits the model."""
    rng = random.Random(seed)
    sigma = math.sqrt(math.log(1 + COEFFICIENT_OF_VARIATION**2))
    prompt_mu, output_mu = (math.log(mean) - sigma**2 / 2 for mean in MEAN_LENGTHS[dataset])
    lengths = []
    for _ in range(num_requests):
        prompt_len = min(max(round(rng.lognormvariate(prompt_mu, sigma)), 1), MAX_MODEL_LEN - 1)
        output_len = min(max(round(rng.lognormvariate(output_mu, sigma)), 1), MAX_MODEL_LEN - prompt_len)
        lengths.append(Lengths(prompt_len, output_len))
    return lengths


@dataclass(slots=True)
class Usage:
    """Means over the steps that were observed."""

    num_steps: int = 0
    tokens: int = 0  # slots that hold a token, summed over steps
    allocated: int = 0  # slots of blocks in use
    unshared: int = 0  # slots of the blocks that the sequences would hold if none were shared
    seqs: int = 0
    groups: int = 0
    preemptions: int = 0  # in all steps

    def observed(self) -> "Usage":
        """Itself. Ends the script if the requests were too few to fill the pool: there is nothing to divide by."""
        if not self.num_steps:
            raise SystemExit("no step was observed: these requests never filled the pool; give more (--num-requests)")
        return self

    @property
    def token_share(self) -> float:
        """Of the whole pool."""
        return self.tokens / (self.num_steps * NUM_SLOTS)

    @property
    def fill(self) -> float:
        """Of the blocks in use."""
        return self.tokens / self.allocated

    @property
    def saved(self) -> float:
        """Share of the blocks that sharing makes unnecessary: saved / without sharing."""
        return 1 - self.allocated / self.unshared

    @property
    def batch_size(self) -> float:
        return self.seqs / self.num_steps


class WarmUp:
    """Until the pool was full once, and then twice as many requests have ended as were in it."""

    def __init__(self) -> None:
        self._num_ended = 0
        self._target: int | None = None

    def is_over(self, is_full: bool, num_ended: int, num_running: int) -> bool:
        """Record one more step: whether no request could be admitted, how many ended, how many continue."""
        if self._target is None and is_full:
            self._target = 2 * num_running
        elif self._target is not None:
            self._num_ended += num_ended
        return self._target is not None and self._num_ended >= self._target


class NullModel:
    """Token 0 for every sequence; beams get made-up offers.

    Offers: the probabilities of a beam's next tokens are broken off a stick of length one, each time a share
    Beta(1, theta) of what is left. The mean share, 1 / (1 + theta), says how sure of itself the model is. All beams
    and steps are independent.
    """

    def __init__(self, theta: float = 1.0, seed: int = 0):
        self._theta = theta
        self._random = random.Random(seed)

    def execute(self, plan: StepPlan) -> StepResult:
        return StepResult([self._draw(draw) for span in plan.spans for draw in span.draws])

    def _draw(self, draw: Draw) -> DrawnToken:
        if draw.params.num_logprobs is None:
            return DrawnToken(draw.seq_id, 0)
        rest, pieces = 1.0, []
        for _ in range(draw.params.num_logprobs):
            piece = rest * (1 - self._random.random() ** (1 / self._theta))
            pieces.append(math.log(max(piece, 1e-300)))
            rest -= piece
        pieces.sort(reverse=True)
        return DrawnToken(draw.seq_id, 0, tuple((token, logprob, token + 1) for token, logprob in enumerate(pieces)))


def saturate(
    requests: list[Lengths],
    block_size: int,
    *,
    model: NullModel | None = None,
    n: int = 1,
    beam_width: int | None = None,
    mode: str = "recompute",
    num_slots: int = NUM_SLOTS,
    watch: Callable[[int, Scheduler], None] | None = None,
) -> Usage:
    """Serve all requests, with always some of them waiting; what the pool looks like meanwhile.

    Observed are the steps behind `WarmUp`, as long as enough requests wait. `watch` is called behind each of them with
    its number.
    """
    space = BlockSpaceManager(num_slots // block_size, block_size, enable_prefix_caching=False)
    limits = SchedulerLimits(max_num_seqs=2048, max_num_batched_tokens=2048, max_model_len=MAX_MODEL_LEN)
    scheduler = Scheduler(limits, space, preemption=PreemptionPolicy(mode))
    model = model or NullModel()
    source = _requests(requests, n, beam_width)
    usage = Usage()
    warm_up = WarmUp()
    for request in source:
        scheduler.add(request)
        while (num_waiting := len(scheduler.waiting)) >= NUM_WAITING:
            plan = scheduler.plan()
            is_full = len(scheduler.waiting) >= num_waiting
            updates = scheduler.apply(plan, model.execute(plan))
            ended = {update.group.request_id for update in updates if update.group.is_finished}
            if warm_up.is_over(is_full, len(ended), len(scheduler.running)):
                _observe(usage, scheduler, space)
                if watch is not None:
                    watch(usage.num_steps, scheduler)
    usage.preemptions = scheduler.preemption.num_preemptions
    return usage.observed()


def _observe(usage: Usage, scheduler: Scheduler, space: BlockSpaceManager) -> None:
    usage.num_steps += 1
    usage.groups += len(scheduler.running)
    usage.allocated += space.num_used_blocks * space.block_size
    for group in scheduler.running:
        for seq in group.unfinished:
            usage.seqs += 1
            usage.tokens += seq.num_computed_tokens
            usage.unshared += len(space.block_ids(seq)[0]) * space.block_size


def _requests(lengths: list[Lengths], n: int, beam_width: int | None) -> Iterator[GenerateRequest]:
    for number, request in enumerate(lengths):
        params = SamplingParams(n=n, beam_width=beam_width, max_tokens=request.output_len, ignore_eos=True)
        yield GenerateRequest(str(number), None, [0] * request.prompt_len, params, seed=0, arrival_time=0.0)
