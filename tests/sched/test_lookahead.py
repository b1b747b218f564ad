"""Planning steps ahead changes when things happen, and nothing of what comes out."""

import random

import pytest
from kit.sched.simulation import Simulation

from lullm.errors import InvalidRequestError
from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.types.draw import Draw
from lullm.types.packed import unpack
from lullm.types.step import PENDING_TOKEN, DrawnToken, StepResult


def answers(seed: int, max_in_flight: int, **options: object) -> tuple[dict[str, list], Simulation]:
    """(tokens, end) of every sequence by request, of a workload that does not depend on how steps fall."""
    rng = random.Random(seed)
    sim = Simulation(max_num_seqs=8, max_model_len=40, max_in_flight=max_in_flight, **options)
    groups = []
    for number in range(120):
        prompt = [rng.randrange(2) for _ in range(rng.choice([1, 3, 4, 8, 15, 30]))]
        params = rng.choice([{}, {}, {"n": 3}])
        if number % 20 == 0:  # these hold up the lookahead
            params = rng.choice([{"beam_width": 2}, {"presence_penalty": 0.5}, {"min_tokens": 1}])
        end = rng.choice([None, 1])
        try:
            groups.append(sim.add(str(number), prompt, number % 3, end, max_tokens=rng.choice([1, 2, 9, 30]), **params))
        except InvalidRequestError:
            continue
        for _ in range(rng.randrange(4)):
            sim.step()
    sim.run()
    found = {}
    for group in groups:
        lines = [(h.token_ids, h.finish_reason) for h in group.hypotheses]
        found[group.request_id] = lines or [(seq.token_ids, seq.status) for seq in group.seqs]
    return found, sim


@pytest.mark.pairs
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("enable_prefix_caching", [True, False])
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6)])
def test_the_same_tokens(mode, enable_prefix_caching, windows):
    for seed in range(2):
        runs = [
            answers(
                seed,
                max_in_flight,
                num_blocks=18 + 12 * len(windows),  # room for any one group, so that none outgrows it
                num_host_blocks=40 if mode == "swap" else 0,
                preemption=PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0)),
                enable_prefix_caching=enable_prefix_caching,
                windows=windows,
                policy="priority",
            )
            for max_in_flight in (1, 2, 3, 4)
        ]
        (plain, _), *others = runs
        for ahead, sim in others:
            assert ahead == plain
            assert sim.num_pending > 200
            assert sim.scheduler.preemption.num_preemptions > 0
            assert all(PENDING_TOKEN not in tokens for lines in ahead.values() for tokens, _ in lines)
            assert sim.block_space.num_used_blocks == sim.block_space.num_used_host_blocks == 0


def test_cached_content_is_the_same():
    """Blocks that fill up with a pending token are found later as if it had been known."""
    hits = []
    for max_in_flight in (1, 2, 3, 4):
        sim = Simulation(max_in_flight=max_in_flight, num_blocks=64, max_model_len=64)
        group = sim.add("a", [1, 0, 1], max_tokens=30)
        sim.run()
        sim.add("b", group.seqs[0].token_ids, max_tokens=1)
        sim.run()
        hits.append(sim.block_space.prefix_cache.hits)
    assert hits == [32] * 4


@pytest.mark.parametrize("max_in_flight", [2, 3, 5])
def test_nothing_is_planned_behind_the_last_token_by_length(max_in_flight):
    sim = Simulation(max_in_flight=max_in_flight)
    sim.add("a", [1, 0], max_tokens=5)
    sim.run()
    assert sum(plan.num_tokens for plan in sim.plans) == 2 + 4


@pytest.mark.parametrize("max_in_flight", [2, 4])
def test_nor_behind_the_last_token_of_the_longest_sequence(max_in_flight):
    sim = Simulation(max_in_flight=max_in_flight, max_model_len=8)
    group = sim.add("a", [1, 0], max_tokens=None)
    sim.run()
    assert len(group.seqs[0]) == 8
    pending = [plan for plan in sim.plans if plan.spans and plan.spans[0].start >= 2]
    assert [plan.spans[0].start for plan in pending] == [2, 3, 4, 5, 6]
    assert sum(plan.num_tokens for plan in sim.plans) == 7 and sim.num_pending == 5


def test_a_stop_is_one_step_late_and_costs_no_token():
    sim = Simulation(max_in_flight=2, num_blocks=16)
    scheduler = sim.scheduler
    group = sim.add("a", [1] * 4, end=7)
    first = scheduler.plan()
    second = scheduler.plan()
    assert unpack(second.spans[0].token_ids) == [PENDING_TOKEN] and not scheduler.can_plan
    draws = [draw for span in first.spans for draw in span.draws]
    [update] = scheduler.apply(first, drawn(draws, 7))
    assert update.seq.token_ids == [1] * 4 + [7] and group.is_finished
    assert sim.block_space.num_used_blocks == 0, "free at once"
    assert not scheduler.has_unfinished
    assert scheduler.apply(second, drawn(draws, 5)) == []
    assert update.seq.token_ids == [1] * 4 + [7]
    assert scheduler.plan().is_empty


def test_a_stop_with_three_steps_in_flight():
    """Two steps were planned behind it: what they draw is dropped, and no placeholder is left in the sequence."""
    sim = Simulation(max_in_flight=3)
    scheduler = sim.scheduler
    group = sim.add("a", [1] * 4, end=7)
    plans = [scheduler.plan() for _ in range(3)]
    assert [span.start for plan in plans for span in plan.spans] == [0, 4, 5]
    assert not scheduler.can_plan and group.seqs[0].num_pending == 2
    first, *rest = ([draw for span in plan.spans for draw in span.draws] for plan in plans)
    [update] = scheduler.apply(plans[0], drawn(first, 7))
    assert update.is_end and update.seq.token_ids == [1] * 4 + [7] and update.seq.num_pending == 0
    assert sim.block_space.num_used_blocks == 0 and not scheduler.has_unfinished
    for plan, draws in zip(plans[1:], rest, strict=True):
        assert scheduler.apply(plan, drawn(draws, 5)) == []
    assert scheduler.plan().is_empty


def test_results_replace_placeholders_from_the_first_on():
    sim = Simulation(max_in_flight=4)
    scheduler = sim.scheduler
    group = sim.add("a", [1] * 2, max_tokens=9)
    plans = [scheduler.plan() for _ in range(4)]
    seq = group.seqs[0]
    for number, plan in enumerate(plans):
        [update] = scheduler.apply(plan, drawn([draw for span in plan.spans for draw in span.draws], 10 + number))
        assert update.drawn.token_id == 10 + number
        pending = [PENDING_TOKEN] * (2 - number)
        assert seq.token_ids == [1, 1, *range(10, 11 + number), *pending][: len(seq)]
    assert seq.num_pending == 0 and len(seq) == 6 and seq.num_computed_tokens == 5


def test_an_empty_plan_marks_nothing_twice():
    """A plan without anything to do leaves the placeholders of the plan before it; the next one adds no more."""
    sim = Simulation(max_in_flight=3)
    scheduler = sim.scheduler
    group = sim.add("a", [1] * 2, max_tokens=2)
    first, second = scheduler.plan(), scheduler.plan()
    assert scheduler.plan().is_empty and scheduler.can_plan
    assert scheduler.plan().is_empty and group.seqs[0].num_pending == 1
    for plan in (first, second):
        scheduler.apply(plan, drawn([draw for span in plan.spans for draw in span.draws], 5))
    assert group.is_finished and group.seqs[0].token_ids == [1, 1, 5, 5]


def test_an_abort_while_a_step_runs():
    sim = Simulation(max_in_flight=2, num_blocks=16)
    scheduler = sim.scheduler
    sim.add("a", [1] * 4, n=2)
    other = sim.add("b", [0] * 4)
    first = scheduler.plan()
    second = scheduler.plan()
    draws = [draw for span in first.spans for draw in span.draws]
    assert scheduler.abort("a") is not None
    sim.block_space.check_conservation()
    assert [u.group for u in scheduler.apply(first, drawn(draws, 3))] == [other]
    assert [u.group for u in scheduler.apply(second, drawn(draws, 4))] == [other]
    assert other.seqs[0].token_ids == [0] * 4 + [3, 4]


@pytest.mark.parametrize("params", [{"presence_penalty": 0.1}, {"min_tokens": 2}, {"beam_width": 2}])
def test_draws_that_read_tokens_are_waited_for(params):
    sim = Simulation(max_in_flight=2)
    sim.add("a", [1] * 4, max_tokens=4, **params)
    sim.scheduler.plan()
    assert not sim.scheduler.can_plan


def test_nobody_is_preempted_while_a_step_runs():
    sim = Simulation(max_in_flight=2, num_blocks=6, watermark=0.0)
    for name in "ab":
        sim.add(name, [1] * 8, max_tokens=20)
    ends = sim.run()
    assert {end.seq.output_len for end in ends} == {16, 20} or sim.scheduler.preemption.num_preemptions > 0
    for plan, after in zip(sim.plans, sim.plans[1:], strict=False):
        pending = any(unpack(span.token_ids)[-1] == PENDING_TOKEN for span in after.spans)
        assert not (pending and after.blocks_to_swap_out), plan


def drawn(draws: list[Draw], token_id: int) -> StepResult:
    return StepResult([DrawnToken(draw.seq_id, token_id) for draw in draws])
