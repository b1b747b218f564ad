"""Guesser: proposes the next tokens of sequences, for a step that verifies them (`Intake`).

The tokens of a sequence are those without guesses, whatever is guessed. So a guesser may be wrong, stop and begin again
at any time.
"""

from collections.abc import Sequence as Seq
from typing import Protocol

from lullm.types.sequence import Sequence
from lullm.types.step import Span, StepPlan, StepResult


class Guesser(Protocol):
    """Guesses for all sequences. Its notes on a sequence are freed with the sequence.

    Attributes:
        num_quiet_steps: steps in which nothing was guessed, since it would have cost more than it gives.
    """

    num_quiet_steps: int

    @property
    def is_active(self) -> bool:
        """Whether some sequence may have a guess in the plan that has begun."""
        ...

    def begin(self, seqs: Seq[Sequence]) -> None:
        """A plan begins, in which these sequences run, if there is room."""
        ...

    def num_behind(self, seq: Sequence) -> int:
        """Tokens that must be computed, beside those of the sequence itself, before its next token can be guessed."""
        ...

    def propose(self, seq: Sequence, most: int) -> list[int]:
        """At most `most` guesses of the tokens behind all of `seq`, none of which is pending.

        All GUESSED_TOKEN: the draft model guesses them, by `take_spans`.
        """
        ...

    def take_spans(self) -> list[Span]:
        """The spans that a draft model computes in the plan, which is complete otherwise; see `StepPlan`."""
        ...

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        """Note that the first `num_right` of `num` guesses were right. Called before the sequence gets its tokens."""
        ...

    def forget(self, seq: Sequence) -> None:
        """Note that the sequence has lost its blocks and will be computed again."""
        ...

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """A step has ended."""
        ...


def may_be_guessed(seq: Sequence) -> bool:
    """Whether the next tokens of a sequence can be guessed.

    Not before its first token, which forks share, nor while a token is pending; not for beams, and not where draws read
    the tokens before them.
    """
    params = seq.draw_params
    return params is not None and not params.reads_tokens and not seq.num_pending and seq.output_len > 0
