"""SuffixGuesses: a sequence's next tokens are those that followed its last ones before, here or in other answers.

Suffix decoding (Oliaro et al., "SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications", 2024):
agents, self-corrections and rollouts of one prompt write much that earlier answers have written. A long ending that is
found again is good evidence, so it has many guesses, a short one few. Places vote, and a guess needs its share of them.

In place of the paper's trees of suffixes there are `Passages`, which take a hundredth of the memory in Python.
"""

from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

from lullm.config.option.speculation import Speculation
from lullm.sched.guess.misses import Misses
from lullm.sched.guess.passages import Continuation, Passages
from lullm.sched.guess.text import TextGuesses
from lullm.types.sequence import Sequence

_BITS_OF_ONE, _BITS_OF_ALL = 12, 18
_MOST_TOKENS = 1 << 21
"""Of past answers: 16 MiB, and 2 MiB for the beginnings of chains."""


class PastAnswers:
    """The newest answers, `most` of them and 2 million tokens at most.

    There are two halves: once the newer one is full, the older one is dropped.
    """

    def __init__(self, most: int):
        self._most = most
        self._newer, self._older = Passages(_BITS_OF_ALL), Passages(0)
        self._num_newer = 0

    def add(self, token_ids: Seq[int]) -> None:
        """An answer has ended."""
        if not self._most or len(token_ids) < 2:
            return
        if self._num_newer >= max(self._most // 2, 1) or len(self._newer) + len(token_ids) > _MOST_TOKENS // 2:
            self._older = self._newer if self._most > 1 else Passages(0)
            self._newer, self._num_newer = Passages(_BITS_OF_ALL), 0
        self._newer.extend(token_ids[: _MOST_TOKENS // 2 - 1])
        self._newer.end_text()
        self._num_newer += 1

    @property
    def halves(self) -> tuple[Passages, Passages]:
        """The newer answers, and the older ones."""
        return self._newer, self._older


class _Own:
    """Notes on one sequence: its text, and how its guesses came out."""

    __slots__ = ("misses", "text")

    def __init__(self) -> None:
        self.text, self.misses = Passages(_BITS_OF_ONE), Misses()


class SuffixGuesses(TextGuesses):
    """Guesses for all sequences; implements `Guesser`. Its notes on a sequence are freed with the sequence.

    Answers with a `cache_salt` are not seen by others, and see none: the time of a step would tell of them.
    """

    def __init__(self, speculation: Speculation):
        self._how = speculation
        self._past = PastAnswers(speculation.suffix_decoding_max_cached_requests)
        self._own: WeakKeyDictionary[Sequence, _Own] = WeakKeyDictionary()
        self._running: list[Sequence] = []

    def begin(self, seqs: Seq[Sequence]) -> None:
        """See `Guesser`. The answers that have ended since the last plan are past ones now."""
        for seq in self._running:
            if seq.is_finished and not seq.cache_salt:
                self._past.add(seq.token_ids[seq.prompt_len :])
        self._running = list(seqs)

    def propose(self, seq: Sequence, most: int) -> list[int]:
        """See `Guesser`. What followed more surely: in the sequence itself, or in past answers."""
        own = self._own.get(seq)
        if own is None:
            own = self._own[seq] = _Own()
        if own.misses.is_silent(len(seq)):
            return []
        own.text.extend(seq.token_ids[len(own.text) :])
        how, ending = self._how, seq.token_ids[-self._how.suffix_decoding_max_tree_depth :]
        found = [
            text.continuation(
                ending,
                how.suffix_decoding_max_spec_factor,
                min(most, how.num_speculative_tokens),
                how.suffix_decoding_min_token_prob,
            )
            for text in (own.text, *(() if seq.cache_salt else self._past.halves))
        ]
        surest: Continuation = max(found, key=lambda each: each.num_expected)
        return surest.token_ids

    def learn(self, seq: Sequence, num: int, num_right: int) -> None:
        """See `Guesser`."""
        if self._how.adaptive is not False:
            self._own[seq].misses.note(len(seq), num_right)
