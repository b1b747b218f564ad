"""SchedulerStats: what a scheduler counts."""

from dataclasses import dataclass


@dataclass(slots=True)
class SchedulerStats:
    """Counters since the start. Prompt tokens count once per request, recomputed ones not again.

    `pooled`: requests whose prompts were pooled. `kv_cache_full`: requests that were cut because the whole pool was too
    small for them.
    """

    prompt_tokens: int = 0
    generation_tokens: int = 0
    pooled: int = 0
    kv_cache_full: int = 0
