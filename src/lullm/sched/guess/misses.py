"""Misses: makes the guesses of a sequence rarer while they are all wrong."""

_MOST_MISSES = 5


class Misses:
    """How many times in a row a sequence's guesses were all wrong: it then has none for 1, 3, 7, at most 31 tokens."""

    __slots__ = ("_num", "_silent_until")

    def __init__(self) -> None:
        self._num = self._silent_until = 0

    def is_silent(self, seq_len: int) -> bool:
        """Whether a sequence of so many tokens is to have no guesses."""
        return seq_len < self._silent_until

    def note(self, seq_len: int, num_right: int) -> None:
        """So many of the guesses behind a sequence of `seq_len` tokens were right."""
        if num_right:
            self._num = 0
            return
        self._num = min(self._num + 1, _MOST_MISSES)
        self._silent_until = seq_len + 2**self._num  # the token behind the guesses comes in any case
