"""Lookahead: plans a step while the step before it runs, so that a device never waits for the host.

The tokens of the running step are not known yet. Each sequence that draws one gets PENDING_TOKEN as its last token
while the next plan is made, so that lengths, positions and slots are right. The worker fills in the token on the
device, and `apply` of the running step replaces it. Decisions that depend on the value of a token wait:

- content hashes: a block is promoted once its last token is known;
- draws that read the tokens so far (`DrawParams.reads_tokens`), and beams: no step is planned ahead of them;
- preemption and ends for lack of blocks: a plan that would need them stays short, and the next plan is made when no
  step runs (`is_blocked`);
- stop conditions: a sequence that has ended was planned for one step too many. Its blocks are free at once, since
  later plans run after that step, and the token that the step draws for it is dropped.
"""

from collections import deque
from collections.abc import Callable

from lullm.sched.roster import Member
from lullm.types.step import PENDING_TOKEN, StepPlan


class Lookahead:
    """The plans that have not been applied: at most two, of which the older one runs."""

    def __init__(self, max_model_len: int):
        self._max_model_len = max_model_len
        self._plans: deque[StepPlan] = deque()
        self._holds_up = False  # the newest plan does
        self.is_blocked = False

    @property
    def is_ahead(self) -> bool:
        """Whether a plan that is made now comes before the result of another."""
        return bool(self._plans)

    @property
    def can_plan(self) -> bool:
        """Whether another plan may be made now."""
        if not self._plans:
            return True
        return len(self._plans) < 2 and not (self.is_blocked or self._holds_up)

    def begin(self, find_member: Callable[[int], Member | None]) -> None:
        """Before a plan: append placeholders to the sequences that the running step draws for.

        A sequence whose pending token ends it by length gets none, since it has nothing left to compute.
        """
        self.is_blocked = False
        if not self._plans:
            return
        [running] = self._plans
        for span in running.spans:
            for draw in span.draws:
                member = find_member(draw.seq_id)
                if member is None:
                    continue
                group, seq = member
                is_last = seq.output_len + 1 == group.request.params.max_tokens or len(seq) + 1 >= self._max_model_len
                if not (is_last or seq.is_finished):
                    seq.token_ids.append(PENDING_TOKEN)

    def add(self, plan: StepPlan, holds_up: bool) -> None:
        """After a plan: it will run, unless it is empty. `holds_up`: the next plan needs its result."""
        if not plan.is_empty:
            self._plans.append(plan)
            self._holds_up = holds_up

    def remove(self, plan: StepPlan) -> None:
        """The result of the oldest plan is being applied; an empty plan was never added."""
        if self._plans and self._plans[0] is plan:
            self._plans.popleft()
        else:
            assert plan.is_empty, "results are applied in the order of their plans"
