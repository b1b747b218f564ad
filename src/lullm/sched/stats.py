"""SchedulerStats: what a scheduler counts; GapCounts: how long requests waited between tokens."""

import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

from lullm.types.monitor.stats import GAP_BOUNDS_S, TokenGaps


class GapCounts:
    """Counts the waits between a request's tokens into the buckets of `TokenGaps`."""

    def __init__(self) -> None:
        self._counts = [0] * (len(GAP_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, num_by_last_s: Mapping[float, int], now: float) -> None:
        """A step has ended at `now`. `num_by_last_s`: by the time of their last token, the requests that got tokens
        from it.

        Most requests of a batch waited for the same step, so one search counts them all.
        """
        for last_s, num in num_by_last_s.items():
            gap_s = now - last_s
            self._counts[bisect.bisect_left(GAP_BOUNDS_S, gap_s)] += num
            self._sum_s += num * gap_s

    def snapshot(self) -> TokenGaps:
        """A copy of the counts; from any thread."""
        return TokenGaps(GAP_BOUNDS_S, tuple(self._counts), self._sum_s)


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start. Prompt tokens count once per request; recomputed ones do not count again.

    `generation_tokens`: drawn tokens, offers to beams included. `pooled`: requests whose prompts were pooled.
    `kv_cache_full`: requests that were cut because the whole pool was too small for them. `gaps`: the waits between
    tokens. `num_drafts`: times that a sequence's next tokens were guessed, `num_draft_tokens` of them in all, of which
    `num_accepted_tokens` were right; `accepted_by_position`: of those the first, the second ... of a draft. `draft_s`:
    seconds of a draft model.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    pooled: int = 0
    kv_cache_full: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_position: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    gaps: GapCounts = field(default_factory=GapCounts)

    def count_positions(self, num: int, num_right: int) -> None:
        """Count a draft of `num` guesses, of which the first `num_right` were right."""
        counts = self.accepted_by_position
        counts.extend([0] * (num - len(counts)))
        for position in range(num_right):
            counts[position] += 1
