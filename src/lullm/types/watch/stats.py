"""EngineStats: a snapshot of an engine's gauges and counters, as plain numbers."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges are of this moment; counters (`_total`) only grow.

    Requests are counted as sequence groups, blocks in KV blocks, the prefix cache in tokens. A block whose content is
    only kept for the prefix cache counts as free. `preemptions_total` is by (action, reason): ('swap', 'cheaper').
    `pooled_total` counts requests whose prompts were pooled, `kv_cache_full_total` those cut because they alone needed
    more than all KV blocks. `finished_total` has a request's first completion's finish reason.
    """

    num_running: int = 0
    num_running_prompt_tokens: int = 0
    num_waiting: int = 0
    num_swapped: int = 0
    num_blocks: int = 0
    num_used_blocks: int = 0
    num_host_blocks: int = 0
    num_used_host_blocks: int = 0
    prefix_cache_queries_total: int = 0
    prefix_cache_hits_total: int = 0
    prefix_cache_host_hits_total: int = 0
    preemptions_total: dict[tuple[str, str], int] = field(default_factory=dict)
    prompt_tokens_total: int = 0
    generation_tokens_total: int = 0
    pooled_total: int = 0
    steps_total: int = 0
    kv_cache_full_total: int = 0
    finished_total: dict[str, int] = field(default_factory=dict)

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all kinds."""
        return sum(self.preemptions_total.values())

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0
