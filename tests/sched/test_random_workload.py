"""Long seeded random workloads: whatever comes, blocks are conserved, budgets kept, and every request ends once."""

import itertools
import random

import pytest
from kit.sched.simulation import Simulation, State
from kit.sched.workload import Workload

from lullm.kv.state import snapshots
from lullm.sched.preemption import PreemptionPolicy, Speeds


def half_of_it_slow(*axes):
    """The product of the axes; slow where the sum of the indices is odd. With three, any two values still meet."""
    return [
        pytest.param(*(value for _, value in case), marks=pytest.mark.slow if sum(i for i, _ in case) % 2 else ())
        for case in itertools.product(*map(enumerate, axes))
    ]


POOLS = [
    # device blocks, host blocks, tokens per step, preemption mode
    (12, 0, 8, "recompute"),
    (32, 0, 32, "recompute"),
    (20, 64, 16, "swap"),
    (20, 6, 16, "swap"),
    (20, 64, 16, "auto"),
]


@pytest.mark.parametrize(
    ("policy", "enable_prefix_caching", "pool"), half_of_it_slow(["fcfs", "priority"], [True, False], POOLS)
)
def test_fifteen_hundred_rounds(policy, enable_prefix_caching, pool):
    run_workload(policy, enable_prefix_caching, *pool)


@pytest.mark.parametrize(("policy", "mode", "delay_factor"), [("fcfs", "auto", 0.0), ("priority", "swap", 0.5)])
def test_fifteen_hundred_rounds_prefill_first(policy, mode, delay_factor):
    run_workload(policy, True, 20, 64, 48, mode, enable_chunked_prefill=False, delay_factor=delay_factor)


WINDOWED_POOLS = [
    # smaller than the longest prompts
    (6, 0, 8, "recompute"),
    (7, 64, 16, "swap"),
    (7, 4, 16, "swap"),
    (7, 64, 16, "auto"),
]


@pytest.mark.parametrize(
    ("window", "enable_prefix_caching", "pool"), half_of_it_slow([3, 8, 13], [True, False], WINDOWED_POOLS)
)
def test_fifteen_hundred_rounds_in_a_window(window, enable_prefix_caching, pool):
    run_workload("fcfs", enable_prefix_caching, *pool, windows=(window,))


GROUPS = [
    # windows of the cache groups, device blocks, host blocks, tokens per step, preemption mode
    ((None, 6), 26, 0, 8, "recompute"),
    ((None, 6), 26, 64, 16, "swap"),
    ((3, None, 13), 30, 12, 16, "swap"),
    ((None, 6, 6, 6), 48, 64, 16, "auto"),
    ((None, None, 5), 40, 64, 16, "auto"),
    ((4, 9), 12, 8, 16, "auto"),
]


@pytest.mark.parametrize(("enable_prefix_caching", "group"), half_of_it_slow([True, False], GROUPS))
def test_fifteen_hundred_rounds_in_several_groups(enable_prefix_caching, group):
    windows, *pools = group
    run_workload("fcfs", enable_prefix_caching, *pools, windows=windows)


AHEAD = [{"max_in_flight": 2}, {"max_in_flight": 4}, {"max_in_flight": 3, "most_drafts": 4}]
POOLS_AHEAD = [
    # as above, and options
    (12, 0, 8, "recompute", {}),
    (20, 6, 16, "swap", {"policy": "priority"}),
    (20, 64, 16, "auto", {"enable_prefix_caching": False}),
    (20, 64, 48, "auto", {"enable_chunked_prefill": False, "delay_factor": 0.5}),
    (7, 64, 16, "auto", {"windows": (3,)}),
    (7, 4, 16, "swap", {"windows": (8,)}),
    (30, 8, 16, "auto", {"windows": (6, None)}),
]


@pytest.mark.parametrize(("ahead", "pool"), half_of_it_slow(AHEAD, POOLS_AHEAD))
def test_fifteen_hundred_rounds_planned_ahead(ahead, pool):
    num_blocks, num_host_blocks, max_num_batched_tokens, mode, options = pool
    options = {"policy": "fcfs", "enable_prefix_caching": True, **ahead, **options}
    run_workload(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        mode=mode,
        **options,
    )


@pytest.mark.parametrize(
    ("num_blocks", "num_host_blocks", "max_num_batched_tokens", "mode", "options"),
    [
        (20, 0, 8, "recompute", {}),
        (20, 6, 16, "swap", {"policy": "priority", "max_in_flight": 2}),
        (20, 64, 16, "auto", {"enable_prefix_caching": False}),
        (20, 64, 48, "auto", {"enable_chunked_prefill": False, "max_in_flight": 2}),
        (7, 64, 16, "auto", {"windows": (3,), "max_in_flight": 3}),
        (30, 8, 16, "auto", {"windows": (6, None)}),
    ],
)
def test_prompts_that_are_pooled_beside_generation(num_blocks, num_host_blocks, max_num_batched_tokens, mode, options):
    """Every sum holds each row that counts once, whatever has happened to the prompt meanwhile."""
    options = {"policy": "fcfs", "enable_prefix_caching": True, **options}
    workload = run_workload(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
        mode=mode,
        num_rounds=3_000,  # half as many do not preempt in every way
        pooling_share=0.5,
        **options,
    )
    pooled = [group for group in workload.accepted if group.pooled is not None]
    assert workload.sim.scheduler.stats.pooled == sum(group.pooled.is_complete for group in pooled) > 100


@pytest.mark.parametrize(
    ("num_blocks", "num_host_blocks", "max_num_batched_tokens", "mode", "options"),
    [
        (16, 0, 13, "recompute", {}),
        (20, 6, 16, "swap", {"policy": "priority"}),
        (20, 64, 48, "auto", {"enable_chunked_prefill": False}),
        (9, 64, 16, "auto", {"windows": (3,), "max_in_flight": 3}),
        (10, 4, 16, "swap", {"windows": (8,), "enable_prefix_caching": False}),
        (30, 8, 13, "auto", {"windows": (6, None), "max_in_flight": 3, "most_drafts": 4}),
    ],
)
def test_pictures_whose_rows_see_each_other(num_blocks, num_host_blocks, max_num_batched_tokens, mode, options):
    """No step ends within one (`Simulation._check`), and all requests end."""
    options = {"policy": "fcfs", "enable_prefix_caching": True, **options}
    pools = {"num_blocks": num_blocks, "num_host_blocks": num_host_blocks, "mode": mode}
    run_workload(max_num_batched_tokens=max_num_batched_tokens, picture_rows=6, **pools, **options)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["swap", "auto"])
def test_a_hundred_thousand_rounds(mode):
    run_workload("fcfs", True, 20, 6, 16, mode, num_rounds=100_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pool", "options"),
    [
        ((12, 0, 8, "recompute"), {}),
        ((20, 64, 48, "auto"), {"enable_chunked_prefill": False, "delay_factor": 0.5}),
        ((7, 4, 16, "swap"), {"windows": (8,), "max_in_flight": 4}),
        ((30, 8, 16, "auto"), {"windows": (6, None), "max_in_flight": 3, "most_drafts": 4}),
        ((44, 12, 16, "auto"), {"windows": (None, 6, State(3))}),
    ],
)
def test_thirty_thousand_rounds(pool, options):
    run_workload("priority", True, *pool, num_rounds=30_000, **options)


STATES = [
    # windows and states of the cache groups, device blocks, host blocks, tokens per step, preemption mode
    ((None, State(1)), 26, 0, 8, "recompute"),
    ((None, State(3)), 40, 64, 16, "swap"),
    ((None, State(2), State(3)), 44, 12, 16, "swap"),
    ((None, 6, State(3)), 44, 64, 16, "auto"),
    ((5, State(2)), 20, 16, 16, "auto"),
]


@pytest.mark.parametrize(
    ("options", "group"),
    half_of_it_slow([{}, {"enable_prefix_caching": False}, {"max_in_flight": 3, "most_drafts": 3}], STATES),
)
def test_fifteen_hundred_rounds_with_states(monkeypatch, options, group):
    monkeypatch.setattr(snapshots, "LEAST_INTERVAL", 8)
    windows, *pools = group
    options, has_cache = dict(options), options.get("enable_prefix_caching", True)
    options.pop("enable_prefix_caching", None)
    sim = run_workload("fcfs", has_cache, *pools, windows=windows, **options).sim
    assert bool(sim.block_space.prefix_cache.hits) == has_cache
    assert sim.scheduler.stats.num_drafts == 0, "a state cannot go back"


def largest_of(window):
    if isinstance(window, State):
        return 4 * window.num_blocks
    return (15 if window is None else (window + 2) // 4 + 1) + 3


def run_workload(
    policy,
    enable_prefix_caching,
    num_blocks,
    num_host_blocks,
    max_num_batched_tokens,
    mode,
    num_rounds=1_500,
    pooling_share=0.0,
    picture_rows=0,
    **options,
):
    preemption = PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0))
    sim = Simulation(
        num_blocks=num_blocks,
        num_host_blocks=num_host_blocks,
        block_size=4,
        max_num_seqs=8,
        max_num_batched_tokens=max_num_batched_tokens,
        max_model_len=40,
        enable_prefix_caching=enable_prefix_caching,
        policy=policy,
        preemption=preemption,
        **options,
    )
    workload = Workload(sim, random.Random(num_blocks), pooling_share, picture_rows)
    workload.run(num_rounds)
    # The longest prompt and three forks, in every group.
    largest = sum(largest_of(window) for window in sim.windows)
    if not picture_rows:
        assert bool(workload.num_refused) == (largest > num_blocks)
    assert workload.num_aborted and len(workload.accepted) > 250
    if mode != "recompute":
        taken = {action for action, _ in preemption.counts}
        assert "swap" in taken and ("recompute" in taken or mode == "swap" and num_host_blocks == 64)
    assert sim.scheduler.preemption.num_preemptions > 0
    return workload
