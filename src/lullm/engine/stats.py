"""Stats: the numbers of a scheduler and its block space in one snapshot."""

from collections.abc import Mapping

from lullm.sched.scheduler import Scheduler
from lullm.types.watch.stats import EngineStats


def take_stats(
    scheduler: Scheduler, num_steps: int, finished: Mapping[str, int], expert_balance: float | None = None
) -> EngineStats:
    """A snapshot. Any thread may call it while another one steps. `finished`: requests by finish reason."""
    space = scheduler.block_space
    return EngineStats(
        num_running=len(scheduler.running),
        num_running_prompt_tokens=sum(len(group.request.prompt_token_ids) for group in tuple(scheduler.running)),
        num_waiting=len(scheduler.waiting),
        num_swapped=len(scheduler.swapped),
        num_blocks=space.num_blocks,
        num_used_blocks=space.num_used_blocks,
        num_host_blocks=space.num_host_blocks,
        num_used_host_blocks=space.num_used_host_blocks,
        prefix_cache_queries_total=space.prefix_cache.queries,
        prefix_cache_hits_total=space.prefix_cache.hits,
        prefix_cache_host_hits_total=space.prefix_cache.host_hits,
        preemptions_total={**scheduler.preemption.counts},
        prompt_tokens_total=scheduler.stats.prompt_tokens,
        generation_tokens_total=scheduler.stats.generation_tokens,
        pooled_total=scheduler.stats.pooled,
        kv_cache_full_total=scheduler.stats.kv_cache_full,
        steps_total=num_steps,
        finished_total=dict(finished),
        token_gaps=scheduler.stats.gaps.snapshot(),
        expert_balance=expert_balance,
    )
