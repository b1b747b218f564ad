"""Stats: every number of a snapshot, read from a scheduler in the simulation."""

import dataclasses

from kit.sched.simulation import Simulation

from lullm.sched.monitor import take_stats
from lullm.types.monitor.stats import EngineStats


def stats_of(sim, **finished):
    return take_stats(sim.scheduler, 7, finished)


def test_an_idle_scheduler():
    stats = stats_of(Simulation(num_blocks=16, num_host_blocks=8))
    assert stats == EngineStats(num_blocks=16, num_host_blocks=8, steps_total=7)
    assert stats.kv_cache_usage == 0 and stats.num_preemptions == 0


def test_the_balance_of_experts_is_handed_on():
    assert take_stats(Simulation().scheduler, 7, {}, 0.75).expert_balance == 0.75


def test_the_numbers_of_a_run():
    sim = Simulation(num_blocks=16, block_size=4, max_num_seqs=2)
    for name in "abc":
        sim.add(name, [1, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=4)
    sim.step()
    stats = stats_of(sim)
    assert (stats.num_running, stats.num_waiting, stats.num_swapped) == (2, 1, 0)
    assert stats.num_used_blocks == sim.block_space.num_used_blocks > 0
    assert stats.kv_cache_usage == stats.num_used_blocks / 16
    assert (stats.prompt_tokens_total, stats.generation_tokens_total) == (18, 2)
    while sim.scheduler.has_unfinished:
        sim.step()
    last = stats_of(sim, length=3)
    assert (last.prompt_tokens_total, last.generation_tokens_total) == (27, 12)
    assert last.prefix_cache_queries_total == 27 and last.prefix_cache_hits_total >= 8, "c finds a's full blocks"
    assert last.num_used_blocks == 0 and last.finished_total == {"length": 3}


def test_a_snapshot_does_not_change_any_more():
    sim, finished = Simulation(), {"stop": 1}
    stats = take_stats(sim.scheduler, 1, finished)
    before = dataclasses.asdict(stats)
    finished["stop"] = 2
    sim.scheduler.preemption.counts["swap", "mode"] = 5
    assert dataclasses.asdict(stats) == before
    assert take_stats(sim.scheduler, 1, finished).num_preemptions == 5
