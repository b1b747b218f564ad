"""NgramGuesses: a sequence's next tokens are those behind the latest earlier place of its last few (prompt lookup).

Answers often repeat passages of their prompt or of themselves: quotations, edited text, code, tables. A step that
verifies the guesses (`Intake`) then gives several tokens. The tokens are those without guesses, whatever is guessed.
"""

from weakref import WeakKeyDictionary

import numpy as np

from lullm.config.option.speculation import Speculation
from lullm.sched.guess.misses import Misses
from lullm.sched.guess.text import TextGuesses
from lullm.types.sequence import Sequence


class _History:
    """Notes on one sequence: its tokens, and how its guesses came out."""

    __slots__ = ("_buffer", "_len", "misses")

    def __init__(self) -> None:
        self._buffer = np.zeros(256, np.int32)
        self._len = 0
        self.misses = Misses()

    def tokens(self, token_ids: list[int]) -> np.ndarray:
        """The sequence's tokens [len(token_ids)] int32, which only grow."""
        if len(token_ids) > len(self._buffer):
            self._buffer = np.resize(self._buffer, 2 * len(token_ids))
        self._buffer[self._len : len(token_ids)] = token_ids[self._len :]
        self._len = len(token_ids)
        return self._buffer[: self._len]


class NgramGuesses(TextGuesses):
    """Guesses for all sequences; implements `Guesser`. Its notes on a sequence are freed with the sequence."""

    def __init__(self, speculation: Speculation):
        self._speculation = speculation
        self._histories: WeakKeyDictionary[Sequence, _History] = WeakKeyDictionary()

    def propose(self, seq: Sequence, most: int) -> list[int]:
        """At most `most` guesses of the tokens behind all of `seq`, none of which is pending."""
        history = self._histories.get(seq)
        if history is None:
            history = self._histories[seq] = _History()
        if history.misses.is_silent(len(seq)):
            return []
        how = self._speculation
        num_tokens = min(most, how.num_speculative_tokens)
        return continuation(history.tokens(seq.token_ids), how.prompt_lookup_min, how.prompt_lookup_max, num_tokens)

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        """So many of the guesses that `propose` gave last were right. Before the sequence gets its tokens."""
        if self._speculation.adaptive is not False:
            self._histories[seq].misses.note(len(seq), num_right)


def continuation(tokens: np.ndarray, shortest: int, longest: int, num_tokens: int) -> list[int]:
    """The `num_tokens` tokens behind the latest earlier place of the longest ending of `tokens` that has one.

    Endings of `shortest` to `longest` tokens count; empty: there is no such place. If fewer tokens than that stand
    behind the place, they repeat, as if the text went round.
    """
    last = len(tokens) - 1
    ends = np.flatnonzero(tokens[:last] == tokens[last])  # the last tokens of the places that are left
    found = ends if shortest == 1 else ends[:0]
    for length in range(2, longest + 1):
        ends = ends[ends >= length - 1]
        ends = ends[tokens[ends - length + 1] == tokens[last - length + 1]] if len(ends) else ends
        if not len(ends):
            break
        if length >= shortest:
            found = ends
    return np.resize(tokens[found[-1] + 1 :], num_tokens).tolist() if len(found) else []
