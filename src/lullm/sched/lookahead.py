"""Lookahead: planning steps while steps before them still run, so that a device never waits for the host.

The tokens that the steps in flight draw are not known yet. Each sequence that gets one carries PENDING_TOKEN in its
place while the next plan is made; lengths, positions and slots are right with it, and the worker fills in the token on
the device. A sequence has as many pending tokens at its end as steps in flight draw for it. Results are applied in the
order of the plans, and each replaces the first pending token. What depends on the value of a token waits:

- content hashes: a block is promoted once its last token is known;
- draws that read the tokens so far (`DrawParams.reads_tokens`), beams, and spans with drafts, of which it is not known
  how many are accepted: no step is planned behind them (`holds_up`);
- preemption and ends for want of blocks: a plan that would need them is left short, and holds up the next one too;
- stop conditions: a sequence that turns out to have ended has been planned some steps too far. Its blocks are free at
  once, because steps that are planned from then on run after those. What they draw for it is dropped.
"""

from collections import deque
from collections.abc import Callable

from lullm.sched.roster import Member
from lullm.types.step import StepPlan


class Lookahead:
    """The plans that have not been applied, oldest first: at most `max_in_flight`.

    Args:
        max_model_len: tokens of the longest sequence.
    """

    def __init__(self, max_in_flight: int, max_model_len: int):
        self._max_in_flight = max_in_flight
        self._max_model_len = max_model_len
        self._plans: deque[StepPlan] = deque()
        self._unmarked: StepPlan | None = None  # the newest, as long as its draws have no placeholders
        self._holds_up = False

    @property
    def is_ahead(self) -> bool:
        """Whether a plan that is made now comes before the result of another."""
        return bool(self._plans)

    @property
    def can_plan(self) -> bool:
        """Whether another plan may be made now."""
        return not self._plans or (len(self._plans) < self._max_in_flight and not self._holds_up)

    def begin(self, find_member: Callable[[int], Member | None]) -> None:
        """A plan is being made: put placeholders behind the sequences that the plan before it draws for.

        A sequence that its pending token ends by length gets none: it has nothing left to compute.
        """
        if self._unmarked is None:
            return
        for span in self._unmarked.spans:
            for draw in span.draws:
                member = find_member(draw.seq_id)
                if member is None:
                    continue
                group, seq = member
                is_last = seq.output_len + 1 == group.request.params.max_tokens or len(seq) + 1 >= self._max_model_len
                if not (is_last or seq.is_finished):
                    seq.add_pending()
        self._unmarked = None

    def add(self, plan: StepPlan, holds_up: bool) -> None:
        """The plan has been made and will run, unless it is empty. `holds_up`: the next one waits for all results."""
        self._holds_up = holds_up
        if not plan.is_empty:
            self._plans.append(plan)
            self._unmarked = plan

    def remove(self, plan: StepPlan) -> None:
        """The result of the oldest plan is being applied. An empty plan was never added."""
        if plan.is_empty:
            return
        assert self._plans and self._plans[0] is plan, "results are applied in the order of their plans"
        self._plans.popleft()
        if plan is self._unmarked:
            self._unmarked = None
