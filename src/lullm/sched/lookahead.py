"""Lookahead: plans steps while earlier steps run, so that a device never waits for the host.

The tokens of the steps in flight are not known yet. There are two ways to plan further steps.

Tokens are fed back: a step computes with tokens that the step before it has drawn. While the next plan is made, a
sequence that draws one gets PENDING_TOKEN in its place, so that lengths, positions and slots are right. It has one
pending token for each draw in flight. The worker fills in the tokens on the device. Results are applied in the order of
the plans, and each replaces the first pending token. Decisions that depend on the value of a token wait:
- content hashes: a block is promoted once its last token is known;
- draws that read the tokens so far (`DrawParams.reads_tokens`), beams, and guesses, since the number of right ones is
  not known: no step is planned ahead of them (`holds_up`);
- preemption and ends for lack of blocks: a plan that would need them stays short, and the next plan is made when no
  step runs;
- stop conditions: a sequence that has ended was planned for some steps too many. Its blocks are free at once, since
  later plans run after those steps; the tokens that they draw for it are dropped.

Tokens are not fed back: the last stage of a pipeline draws them, while the first computes the next step. A sequence
with a draw in flight has nothing to compute, and further plans are for other sequences. Each plan takes its share of
them, so that all stages have equal work. Chunks of a prompt need no token: they follow each other through the stages.
Only preemption has to wait.
"""

from collections import deque
from collections.abc import Callable

from lullm.sched.roster import Member
from lullm.types.step import StepPlan
from lullm.units import cdiv


class Lookahead:
    """The plans that have not been applied, oldest first: at most `max_in_flight`.

    Args:
        max_model_len: tokens of the longest sequence.
        feeds_back: a step may compute with tokens that the step before it draws.
    """

    def __init__(self, max_in_flight: int, max_model_len: int, feeds_back: bool = True):
        self._feeds_back = feeds_back
        self._max_in_flight = max_in_flight
        self._max_model_len = max_model_len
        self._plans: deque[StepPlan] = deque()
        self._unmarked: StepPlan | None = None  # the newest plan, while its draws have no placeholders
        self._holds_up = False

    @property
    def is_ahead(self) -> bool:
        """Whether a plan made now precedes the result of another."""
        return bool(self._plans)

    @property
    def can_plan(self) -> bool:
        """Whether another plan may be made now."""
        return not self._plans or (len(self._plans) < self._max_in_flight and not self._holds_up)

    def share(self, num_seqs: Callable[[], int]) -> int | None:
        """The share of `num_seqs()` sequences that one plan draws for, about; None: all.

        It is such that all steps in flight draw for equally many.
        """
        if self._feeds_back or self._max_in_flight == 1:
            return None
        return max(cdiv(num_seqs(), self._max_in_flight), 1)

    def begin(self, find_member: Callable[[int], Member | None]) -> None:
        """Before a plan: append placeholders to the sequences that the newest plan draws for.

        A sequence that ends by length with its pending token gets none, since it has nothing left to compute.
        """
        if self._unmarked is None:
            return
        for span in self._unmarked.spans:
            for draw in span.draws:
                member = find_member(draw.seq_id)
                if member is None:
                    continue
                group, seq = member
                is_last = seq.output_len + 1 == group.request.params.max_tokens
                is_last = is_last or seq.num_positions + 1 >= self._max_model_len
                if not (is_last or seq.is_finished):
                    seq.add_pending()
        self._unmarked = None

    def add(self, plan: StepPlan, reads_draws: bool, is_blocked: bool) -> None:
        """Record a plan, which will run unless it is empty. Other arguments: see `PlanBuilder`."""
        self._holds_up = is_blocked or (reads_draws and self._feeds_back)
        if not plan.is_empty:
            self._plans.append(plan)
            self._unmarked = plan if self._feeds_back else None

    def clear(self) -> None:
        """Forget all plans: none will have a result."""
        self._plans.clear()
        self._unmarked = None
        self._holds_up = False

    def remove(self, plan: StepPlan) -> None:
        """The result of the oldest plan is being applied. An empty plan was never added."""
        if plan.is_empty:
            return
        assert self._plans and self._plans[0] is plan, "results are applied in the order of their plans"
        self._plans.popleft()
        if plan is self._unmarked:
            self._unmarked = None
