"""StopStrings: end a text at the first stop string in it, while the text is still being written.

The match does not depend on the split of the text into pieces: the stop string that is complete first wins, and of
several complete at the same character the longest. So there are no ties.

Every stop string has its own Knuth-Morris-Pratt automaton (Knuth, Morris, Pratt 1977). Its state is the length of the
stop string's prefix at the end of the text. A piece costs O(its characters x stop strings in progress). The text to
hold back is the longest of these prefixes.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple


class StopResult(NamedTuple):
    """`text`: what can be shown now. `stop`: the stop string that ended the text; None: no match yet."""

    text: str
    stop: str | None


class StopStrings:
    """Looks for `stop` in one growing text.

    A possible beginning of a stop string is held back, except with `include_in_output`, which shows it in any case.
    `stop` must hold no empty strings (`SamplingParams` checks it).
    """

    def __init__(self, stop: Sequence[str], include_in_output: bool = False):
        self._stops = tuple(dict.fromkeys(stop))
        self._include = include_in_output
        self._failures = [_failure_function(string) for string in self._stops]
        self._first_chars = frozenset(string[0] for string in self._stops)
        self._matched_lens = [0] * len(self._stops)  # characters of each stop string that the text ends with
        self._max_matched_len = 0
        self._held = ""
        self._found: str | None = None

    def push(self, delta: str) -> StopResult:
        """Take the next piece; text after a match is dropped. Later calls return no text and the same stop string."""
        if not self._max_matched_len and self._found is None and self._first_chars.isdisjoint(delta):
            return StopResult(delta, None)
        if self._found is not None:
            return StopResult("", self._found)
        best_end, best_stop = len(delta) + 1, ""
        for index, stop in enumerate(self._stops):
            end = self._advance(index, delta)
            if end is not None and (end < best_end or end == best_end and len(stop) > len(best_stop)):
                best_end, best_stop = end, stop
        text = self._held + delta
        if best_stop:
            self._found, end = best_stop, len(self._held) + best_end
            self._held = ""
            # With include_in_output the match's beginning may have been shown already.
            return StopResult(text[: end if self._include else end - len(best_stop)], best_stop)
        self._max_matched_len = max(self._matched_lens)
        if self._include:
            return StopResult(delta, None)
        kept = len(text) - self._max_matched_len
        self._held = text[kept:]
        return StopResult(text[:kept], None)

    def flush(self) -> str:
        """The text that was held back, for the end of the text. Empty when called again or after a match."""
        text, self._held = self._held, ""
        self._matched_lens = [0] * len(self._stops)
        self._max_matched_len = 0
        return text

    def _advance(self, index: int, delta: str) -> int | None:
        """Run one automaton over `delta`. Returns the number of characters that complete its stop string, or None."""
        stop, failure, matched = self._stops[index], self._failures[index], self._matched_lens[index]
        start = 0
        if not matched:  # `find` skips to a possible beginning at C speed
            start = delta.find(stop[0])
            if start < 0:
                return None
        for position in range(start, len(delta)):
            char = delta[position]
            while matched and stop[matched] != char:
                matched = failure[matched - 1]
            if stop[matched] == char:
                matched += 1
                if matched == len(stop):
                    return position + 1
        self._matched_lens[index] = matched
        return None


@lru_cache(maxsize=1024)  # the same few stop strings come with every request
def _failure_function(string: str) -> tuple[int, ...]:
    """For each prefix of `string`, the length of its longest proper prefix that is also its suffix."""
    failure = [0] * len(string)
    matched = 0
    for position in range(1, len(string)):
        while matched and string[matched] != string[position]:
            matched = failure[matched - 1]
        if string[matched] == string[position]:
            matched += 1
        failure[position] = matched
    return tuple(failure)
