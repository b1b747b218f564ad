"""PromptDelay: lets prompts gather before a step of prompts, in the prefill-first policy."""

from lullm.types.sequence import SequenceGroup


class PromptDelay:
    """Prompts wait for a share of the last prompt step's time.

    Args:
        factor: that share; 0: prompts do not wait.
    """

    def __init__(self, factor: float):
        self._factor = factor
        self._last_plan: float | None = None
        self._last_latency_s = 0.0

    def is_over(self, first: SequenceGroup | None, now: float) -> bool:
        """Whether prompts may be admitted. `first`: the one that has waited longest. Call once per plan."""
        if self._last_plan is not None:
            self._last_latency_s = now - self._last_plan
            self._last_plan = None
        return first is None or now - first.request.arrival_time >= self._factor * self._last_latency_s

    def begin(self, now: float) -> None:
        """A step of prompts is planned."""
        self._last_plan = now
