"""TextGuesses: what guessers that read texts have in common: no model drafts, and nothing lies in blocks."""

from collections.abc import Sequence as Seq

from lullm.types.sequence import Sequence
from lullm.types.step import Span, StepPlan, StepResult


class TextGuesses:
    """The part of `Guesser` that needs no text; `propose` and `learn` are the others'."""

    is_active = True
    num_quiet_steps = 0

    def begin(self, seqs: Seq[Sequence]) -> None:
        """See `Guesser`."""

    def num_behind(self, seq: Sequence) -> int:
        """None: the text is there."""
        return 0

    def take_spans(self) -> list[Span]:
        """None: no model drafts."""
        return []

    def forget(self, seq: Sequence) -> None:
        """Nothing lies in blocks."""

    def observe(self, plan: StepPlan, result: StepResult) -> None:
        """See `Guesser`."""
