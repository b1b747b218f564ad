"""AdaptiveGuesses: as many guesses as pay, by how often they were right and by what steps cost.

Before each plan it compares ways to go on: guesses for all sequences, or for half of them, a quarter ... (those whose
guesses are right most often), and 1, 2, ... guesses each. A way gives a token for each sequence and for each right
guess, and takes the seconds of a step with these rows, and of the draft model's turns. All of this is measured
(`StepCosts`). A way that was never tried counts as cheap, so that it gets its trial.

A guess behind others counts only if those were right: so of k guesses that are each right with probability p,
p + p^2 + ... + p^k are accepted (Leviathan et al., "Fast inference from transformers via speculative decoding", 2023).

If no way pays, nothing is guessed until a trial after 16 steps, then after 32, and so on, up to 64 (n-grams) or 1,024.
The tokens that a draft model must read before a trial take at most 3 % of the time since the last guess. So a useless
guesser costs next to nothing. While guesses pay, one step in 48 has none, to measure such a step.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

import numpy as np

from lullm.sched.guess.costs import StepCosts
from lullm.sched.guess.guesser import Guesser, may_be_guessed
from lullm.types.packed import INT_BYTES
from lullm.types.sequence import Sequence
from lullm.types.step import Span, StepPlan, StepResult

_GAIN = 1.03
"""A way must promise this many times the tokens per second of no guesses, or of the present way: two measurements of
one way differ by as much."""
_FIRST_RATE, _PRIOR = 0.7, 2.0
"""The assumed rate of right guesses before any was verified; and the number of verified guesses that this rate, or the
rate of all sequences, counts as in the rate of one sequence."""
_MEMORY_OF_ONE, _MEMORY_OF_ALL = 0.85, 0.98
"""The weight of the past, per verified draft of a sequence, and of all."""
_FORGETTING = 0.97
"""The weight of the past per step without a guess: after 50 steps a sequence is as any other."""
_STEPS_WITH, _STEPS_WITHOUT = 4, 16
"""Steps for which a choice holds, with guesses and without: to choose takes a tenth of a millisecond."""
_FIRST_WAIT, _LONGEST_WAIT, _LONGEST_WAIT_OF_MODEL = 16, 64, 1024
_LOOK_EVERY = 48
"""Steps with guesses, of which one has none."""
_TRIAL_SHARE = 0.03
"""The share of the time since the last guess that a draft model may spend on reading tokens before a trial."""
_SEEN_PER_TURN = 32
"""Tokens of a prompt that a draft model sees in the time of a turn, until this was measured."""


class _Rate:
    """How often guesses were right, with less weight for older ones."""

    __slots__ = ("right", "tried")

    def __init__(self, right: float = 0.0, tried: float = 0.0):
        self.right, self.tried = right, tried

    def add(self, num: int, num_right: int, memory: float) -> None:
        """Note that the first `num_right` of `num` guesses were right. The others are not evidence."""
        self.right = self.right * memory + num_right
        self.tried = self.tried * memory + num_right + (num_right < num)

    def fade(self, num_steps: int) -> None:
        """So many steps passed without a guess."""
        self.right *= _FORGETTING**num_steps
        self.tried *= _FORGETTING**num_steps


class AdaptiveGuesses:
    """Gives the guesses of `guesser`, or fewer. Implements `Guesser`.

    Args:
        most: `num_speculative_tokens`.
        has_model: guesses cost time of their own, beside that of their rows.
    """

    def __init__(self, guesser: Guesser, most: int, has_model: bool):
        self._guesser = guesser
        self._most = most
        self._has_model = has_model
        self.num_quiet_steps = 0
        self._costs, self._draft_costs = StepCosts(), StepCosts()
        self._all = _Rate(_FIRST_RATE * _PRIOR, _PRIOR)
        self._rates: WeakKeyDictionary[Sequence, _Rate] = WeakKeyDictionary()
        self._allowed: WeakKeyDictionary[Sequence, int] = WeakKeyDictionary()
        self._is_quiet = False  # some could have guesses, and none has
        self._way = (1.0, most)  # share of the sequences, guesses for each
        self._num_seqs = 0  # of the last plan
        self._age, self._holds_for = 0, 0  # steps since the last choice; steps for which it holds
        self._num_steps, self._quiet_s = 0, 0.0  # since the last guess
        self._see_s: float | None = None  # of a draft model, per token that it sees before
        self._wait = _FIRST_WAIT
        self._num_looked = 0  # steps with guesses since one had none

    @property
    def is_active(self) -> bool:
        """See `Guesser`."""
        return bool(self._allowed) and self._num_looked > 0

    def begin(self, seqs: Seq[Sequence]) -> None:
        """See `Guesser`. Chooses who has how many guesses, or keeps to the last choice."""
        self._guesser.begin(seqs)
        self._age += 1
        if self._age >= self._holds_for or len(seqs) != self._num_seqs:
            self._choose(seqs)
        self._num_seqs = len(seqs)
        if self._allowed:
            self._num_steps, self._quiet_s = 0, 0.0
            self._num_looked = (self._num_looked + 1) % _LOOK_EVERY
        else:
            self._num_steps += 1
            self.num_quiet_steps += self._is_quiet

    def _choose(self, seqs: Seq[Sequence]) -> None:
        able = [seq for seq in seqs if may_be_guessed(seq)]
        chosen, most, self._holds_for = list[Sequence](), 0, 1
        if able and self._has_model and self._draft_costs.is_empty:  # one sequence shows what a turn costs
            chosen, most = [min(able, key=self._guesser.num_behind)], self._most
        elif able:
            rates = {seq: self._rate(seq) for seq in able}
            able.sort(key=lambda seq: -rates[seq])
            num_chosen, most = self._best_way(np.array([rates[seq] for seq in able]), len(seqs))
            chosen = able[:num_chosen]
        if chosen:
            self._wait = _FIRST_WAIT
        elif able and self._num_steps >= self._wait:
            chosen, most = self._trial(able), 1
        self._allowed = WeakKeyDictionary(dict.fromkeys(chosen, most))
        self._is_quiet = bool(able) and not chosen
        for seq in able:
            if seq not in self._allowed and (rate := self._rates.get(seq)) is not None:
                rate.fade(self._age)
        self._age = 0

    def num_behind(self, seq: Sequence) -> int:
        """See `Guesser`."""
        return self._guesser.num_behind(seq)

    def propose(self, seq: Sequence, most: int) -> list[int]:
        """See `Guesser`."""
        allowed = self._allowed.get(seq, 0)
        return self._guesser.propose(seq, min(most, allowed)) if allowed else []

    def take_spans(self) -> list[Span]:
        """See `Guesser`."""
        return self._guesser.take_spans()

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        """See `Guesser`."""
        self._all.add(num, num_right, _MEMORY_OF_ALL)
        self._rates.setdefault(seq, _Rate()).add(num, num_right, _MEMORY_OF_ONE)
        self._guesser.learn(seq, num, num_right)

    def forget(self, seq: Sequence) -> None:
        """See `Guesser`."""
        self._guesser.forget(seq)

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """See `Guesser`. A step of decodes is a measurement, and so is a draft model that has little to see before."""
        self._quiet_s += result.compute_s
        if plan.spans and all(len(span.token_ids) == INT_BYTES and span.draws for span in plan.spans):
            self._costs.add(len(plan.spans), result.compute_s)
        if plan.draft_spans:
            self._observe_draft(plan, result)
        self._guesser.observe(plan, result)

    def _observe_draft(self, plan: StepPlan, result: StepResult) -> None:
        num_rows = len({span.seq_id for span in plan.draft_spans})
        num_turns = max(max(Counter(span.seq_id for span in plan.spans).values()) - 1, 1)
        if all(len(span.token_ids) == INT_BYTES for span in plan.draft_spans):
            self._draft_costs.add(num_rows, result.draft_s / num_turns)
        elif (turn_s := self._draft_costs.seconds(num_rows)) is not None:
            num_tokens = sum(span.num_tokens for span in plan.draft_spans)
            see_s = max(result.draft_s - num_turns * turn_s, 0.0) / num_tokens
            self._see_s = see_s if self._see_s is None else (self._see_s + see_s) / 2

    def _rate(self, seq: Sequence) -> float:
        """The expected share of right guesses: the sequence's own, and that of all while it has few."""
        prior = self._all.right / self._all.tried
        own = self._rates.get(seq)
        return prior if own is None else (own.right + _PRIOR * prior) / (own.tried + _PRIOR)

    def _best_way(self, rates: np.ndarray, num_rows: int) -> tuple[int, int]:
        """(sequences that guess, guesses for each), the first with the highest `rates` [N]; none pay: (0, 0)."""
        base_s = self._costs.seconds(num_rows)
        if base_s is None:
            return len(rates), self._most
        if num_rows < self._costs.smallest:  # the time without guesses comes first
            return 0, 0
        # [N, most]: tokens that the first n sequences gain by 1, 2, ... guesses
        gains = (rates[:, None] ** np.arange(1, self._most + 1)).cumsum(axis=1).cumsum(axis=0)
        best, best_way = _GAIN * num_rows / base_s, (0, 0)
        num = len(rates)
        while num:
            turn_s = self._draft_costs.seconds(num) or 0.0
            for most in range(1, self._most + 1):
                seconds = (self._costs.seconds(num_rows + num * most) or base_s) + most * turn_s
                tokens_per_s = (num_rows + float(gains[num - 1, most - 1])) / seconds
                share = num / len(rates)
                if (share, most) == self._way:  # each number of rows is recorded once, so it is changed with reason
                    tokens_per_s *= _GAIN
                if tokens_per_s > best:
                    best, best_way = tokens_per_s, (num, most)
            num //= 2
        self._way = (best_way[0] / len(rates), best_way[1])
        self._holds_for = _STEPS_WITH if best_way[0] else _STEPS_WITHOUT
        return best_way

    def _trial(self, able: list[Sequence]) -> list[Sequence]:
        """The sequences that guess once though it does not pay, to see whether it still does not; mostly none."""
        see_s = (self._draft_costs.seconds(1) or 0.0) / _SEEN_PER_TURN if self._see_s is None else self._see_s
        room, chosen = _TRIAL_SHARE * self._quiet_s, list[Sequence]()
        for num_behind, seq in sorted(((self._guesser.num_behind(seq), seq) for seq in able), key=lambda each: each[0]):
            room -= num_behind * see_s
            if room < 0:
                break
            chosen.append(seq)
        if chosen:
            self._holds_for = 1
            self._wait = min(2 * self._wait, _LONGEST_WAIT_OF_MODEL if self._has_model else _LONGEST_WAIT)
        return chosen
