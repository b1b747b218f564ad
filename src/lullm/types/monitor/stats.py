"""EngineStats: a snapshot of an engine's gauges and counters, as plain numbers."""

from dataclasses import dataclass, field, replace

GAP_BOUNDS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
"""vLLM's buckets of times between tokens."""


@dataclass(frozen=True, slots=True)
class TokenGaps:
    """How long requests waited between the steps that gave them tokens.

    `counts[i]`: waits of at most `bounds_s[i]` seconds and more than the bound before; the last one has no bound.
    """

    bounds_s: tuple[float, ...] = GAP_BOUNDS_S
    counts: tuple[int, ...] = (0,) * (len(GAP_BOUNDS_S) + 1)
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Gauges are of this moment; counters (`_total`) only grow.

    Requests are counted as sequence groups, blocks in KV blocks, the prefix cache in tokens. A block whose content is
    only kept for the prefix cache counts as free. `preemptions_total` is by (action, reason): ('swap', 'cheaper').
    `pooled_total` counts requests whose prompts were pooled, `kv_cache_full_total` those cut because they alone needed
    more than all KV blocks. `drafts_total` counts guesses of next tokens, `draft_tokens_total` their tokens, and
    `accepted_tokens_total` those that were right (`accepted_by_position_total`: the first, the second ... of a draft).
    `quiet_steps_total` counts steps without guesses, since those would not have paid, `draft_seconds_total` the time
    of a draft model. `num_waiting_for_adapter`: waiting requests whose LoRA adapter has no place,
    `adapter_moves_total` adapters put into one. `finished_total` is by the finish reason of a request's first
    completion. `expert_balance`: see `ExpertLoad.balance`, at the last reading; None: no experts, or no reading yet.
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
    drafts_total: int = 0
    draft_tokens_total: int = 0
    accepted_tokens_total: int = 0
    num_waiting_for_adapter: int = 0
    adapter_moves_total: int = 0
    accepted_by_position_total: tuple[int, ...] = ()
    quiet_steps_total: int = 0
    draft_seconds_total: float = 0.0
    finished_total: dict[str, int] = field(default_factory=dict)
    token_gaps: TokenGaps = TokenGaps()
    expert_balance: float | None = None

    def without_requests(self) -> "EngineStats":
        """The stats of an engine that has ended: gauges of requests are 0, counters stay."""
        return replace(
            self,
            num_running=0,
            num_running_prompt_tokens=0,
            num_waiting=0,
            num_swapped=0,
            num_waiting_for_adapter=0,
            num_used_blocks=0,
            num_used_host_blocks=0,
        )

    @property
    def num_preemptions(self) -> int:
        """Preemptions of all kinds."""
        return sum(self.preemptions_total.values())

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return self.num_used_blocks / self.num_blocks if self.num_blocks else 0.0
