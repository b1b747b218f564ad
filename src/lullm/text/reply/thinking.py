"""Thoughts among output tokens: their number, and the tokens that end them when a budget is used up.

Both depend on the output tokens alone, so preemption, swap and sleep change nothing.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from lullm.types.draw import ThinkingBudget
from lullm.types.reply.rules import ThinkingTokens


class ThinkingCounter:
    """Follows the output tokens of one sequence. `num_tokens`: of thoughts, without the marks around them."""

    def __init__(self, thinking: ThinkingTokens):
        self._thinking = thinking
        self._recent: list[int] = []
        self.is_inside = thinking.begins_inside
        self.num_tokens = 0

    def feed(self, token_ids: Sequence[int]) -> None:
        """Count more tokens."""
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


def forced_id(budget: ThinkingBudget, output_ids: npt.NDArray[np.int32]) -> int | None:
    """The token that must come next because the budget is used up: one of the closing mark's. None: any."""
    num_tokens, used, start, is_inside = len(output_ids), 0, 0, budget.begins_inside
    if num_tokens < budget.num_tokens:
        return None
    opened, closed = _ends_of(budget.open_ids, output_ids), _ends_of(budget.close_ids, output_ids)
    while True:
        mark, ends = (budget.close_ids, closed) if is_inside else (budget.open_ids, opened)
        later = ends[ends >= start + len(mark)]
        if not later.size:
            break
        used += int(later[0]) - len(mark) - start if is_inside else 0
        start, is_inside = int(later[0]), not is_inside
    excess = num_tokens - start - max(budget.num_tokens - used, 0)
    return budget.close_ids[excess % len(budget.close_ids)] if is_inside and excess >= 0 else None


def _ends_of(mark: tuple[int, ...], token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """The places after each occurrence of a mark."""
    num_starts = len(token_ids) - len(mark) + 1
    if num_starts <= 0:
        return np.zeros(0, np.int64)
    is_start = np.ones(num_starts, np.bool_)
    for place, token_id in enumerate(mark):
        is_start &= token_ids[place : place + num_starts] == token_id
    return np.flatnonzero(is_start) + len(mark)
