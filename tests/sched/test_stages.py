"""Steps in flight whose tokens cannot be fed back, as in a pipeline: other sequences, the same tokens."""

import pytest
from kit.sched.simulation import Simulation

from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.types.packed import num_packed
from lullm.types.step import DrawnToken, StepPlan, StepResult

from .test_lookahead import answers


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
                feeds_back=max_in_flight == 1,
                num_blocks=18 + 12 * len(windows),
                num_host_blocks=40 if mode == "swap" else 0,
                preemption=PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0)),
                enable_prefix_caching=enable_prefix_caching,
                windows=windows,
                policy="priority",
            )
            for max_in_flight in (1, 2, 3)
        ]
        (plain, _), *others = runs
        for staged, sim in others:
            assert staged == plain
            assert sim.num_pending == 0, "every token of a plan is known"
            assert sim.scheduler.preemption.num_preemptions > 0
            assert sim.block_space.num_used_blocks == sim.block_space.num_used_host_blocks == 0


def start(num_seqs: int, stages: int, **options: object) -> Simulation:
    sim = Simulation(max_in_flight=stages, feeds_back=False, max_num_seqs=32, num_blocks=512, **options)
    for number in range(num_seqs):
        sim.add(str(number), [1, 0], max_tokens=12)
    return sim


def ids(plan: StepPlan) -> list[int]:
    return [span.seq_id for span in plan.spans]


def result(plan: StepPlan) -> StepResult:
    return StepResult([DrawnToken(draw.seq_id, 1) for span in plan.spans for draw in span.draws])


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_each_step_in_flight_has_its_share(stages):
    """From the first step on: twelve prompts that fit one step fill as many steps as there are stages."""
    scheduler = start(12, stages).scheduler
    plans = [scheduler.plan() for _ in range(stages)]
    assert [len(plan.spans) for plan in plans] == [12 // stages] * stages
    assert sorted(seq_id for plan in plans for seq_id in ids(plan)) == list(range(12))
    assert not scheduler.can_plan
    for _ in range(3):  # the sequences whose tokens have come are the ones that go on
        oldest = plans.pop(0)
        scheduler.apply(oldest, result(oldest))
        plans.append(scheduler.plan())
        assert ids(plans[-1]) == ids(oldest)


def test_steps_even_out():
    """Six sequences that started together, and two that come later: four in every step, after one round."""
    sim = start(6, 2)
    scheduler = sim.scheduler
    plans = [scheduler.plan(), scheduler.plan()]
    for name in "ab":
        sim.add(name, [1, 1], max_tokens=12)
    for _ in range(4):
        oldest = plans.pop(0)
        scheduler.apply(oldest, result(oldest))
        plans.append(scheduler.plan())
    assert [len(plan.spans) for plan in plans] == [4, 4]


def test_chunks_of_a_prompt_follow_each_other():
    """They need no token: all steps in flight hold one, until the last, behind which nothing is known."""
    sim = Simulation(max_in_flight=3, feeds_back=False, max_num_batched_tokens=8)
    scheduler = sim.scheduler
    sim.add("a", [1] * 20, max_tokens=2)
    plans = [scheduler.plan() for _ in range(3)]
    assert [plan.num_tokens for plan in plans] == [8, 8, 4]
    for plan in plans[:2]:
        scheduler.apply(plan, StepResult([]))
        assert scheduler.plan().is_empty
    scheduler.apply(plans[2], result(plans[2]))
    assert scheduler.plan().num_tokens == 1


def test_a_long_prompt_holds_up_no_decode():
    """Its chunks are in every step; a sequence that decodes is in every second."""
    sim = start(1, 2, max_num_batched_tokens=32)
    scheduler = sim.scheduler
    first = scheduler.plan()
    scheduler.apply(first, result(first))
    sim.add("long", [1] * 60, max_tokens=2)
    plans = [scheduler.plan(), scheduler.plan()]
    assert [[num_packed(span.token_ids) for span in plan.spans] for plan in plans] == [[1, 31], [29]]


@pytest.mark.parametrize("params", [{"presence_penalty": 0.1}, {"min_tokens": 2}, {"beam_width": 2}])
def test_draws_that_read_tokens_hold_nobody_up(params):
    """Unlike tokens that are fed back: theirs are all known when they are planned."""
    sim = Simulation(max_in_flight=2, feeds_back=False)
    sim.add("a", [1] * 4, max_tokens=4, **params)
    sim.add("b", [1] * 4, max_tokens=4)
    assert sim.scheduler.plan().num_tokens == 4 and sim.scheduler.can_plan
    assert sim.scheduler.plan().num_tokens == 4


def test_room_is_made_for_all_steps_in_flight():
    """While nothing runs, for those too that the plan leaves to the next one, which may preempt nobody."""
    sim = Simulation(max_in_flight=2, feeds_back=False, num_blocks=6, watermark=0.0, enable_prefix_caching=False)
    for name in "abc":
        sim.add(name, [1] * 8, max_tokens=8)
    sim.run()
    assert sim.scheduler.preemption.num_preemptions > 0
    num_full = sum(len(plan.spans) > 0 for plan in sim.plans)
    assert num_full < 30, "some steps overlap, short of memory as it is"


@pytest.mark.parametrize("stages", [2, 3])
def test_no_request_starves(stages):
    """The oldest is planned as soon as its token is there, however many come after it."""
    sim = start(8, stages)
    oldest = sim.scheduler.running or None
    for number in range(100, 140):
        sim.add(str(number), [1, 0], max_tokens=3)
        sim.step()
    assert oldest is None and sim.scheduler.unfinished_ids[0] != "0", "it has ended"
