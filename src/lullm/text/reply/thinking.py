"""Thoughts among output tokens: how many there are, and what ends them when a budget is used up.

Both are functions of the output tokens alone, so preemption, swap and sleep change nothing.
"""

from collections.abc import Sequence

from lullm.types.reply.rules import ThinkingTokens


class ThinkingCounter:
    """Follows the output tokens of one sequence. `num_tokens`: of thoughts, without the marks around them."""

    def __init__(self, thinking: ThinkingTokens):
        self._thinking = thinking
        self._recent: list[int] = []
        self.is_inside = thinking.begins_inside
        self.num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> None:
        """Go on behind more tokens."""
        for token_id in token_ids:
            self._recent.append(token_id)
            mark = self._thinking.close_ids if self.is_inside else self._thinking.open_ids
            self.num_tokens += self.is_inside
            if tuple(self._recent[-len(mark) :]) == mark:
                if self.is_inside:
                    self.num_tokens -= len(mark)
                self.is_inside = not self.is_inside
                self._recent.clear()
            elif len(self._recent) > 64:
                del self._recent[: -len(mark)]
