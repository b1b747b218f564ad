"""FleetPolicy in simulated time: who is awake, who makes room, who waits and how long."""

import random

import pytest
from kit.fleet.simulation import GIB, SimulatedFleet, terms

from lullm.config.option.sleep_after import SleepRung, parse_sleep_after
from lullm.errors import ConfigError, EngineDeadError, ModelLoadError, ModelUnavailableError

CHANGES = ("load", "wake", "sleep", "unload")


def fleet(*models, budget=1.0, **facts) -> SimulatedFleet:
    return SimulatedFleet(list(models), budget, **facts)


def states(sim) -> dict[str, str]:
    return {name: record.state for name, record in sim.policy.records.items()}


def test_a_model_is_loaded_at_its_first_request_and_stays():
    sim = fleet(terms("a"), terms("b"), budget=2)
    sim.request("a")
    assert states(sim) == {"a": "loading", "b": "unloaded"}
    sim.run()
    sim.request("a")
    sim.run()
    assert sim.said() == ["load a", "admit a", "admit a"]
    assert states(sim) == {"a": "awake", "b": "unloaded"} and sim.policy.held_bytes == GIB


def test_the_least_recently_used_idle_model_makes_room():
    sim = fleet(terms("a"), terms("b"), terms("c"), budget=2)
    for name in ("a", "b", "a", "c"):
        sim.request(name)
        sim.run(20)
    assert sim.said(*CHANGES) == ["load a", "load b", "sleep 1 budget b", "load c"]
    sim.request("b")
    sim.run(20)
    assert sim.said(*CHANGES)[4:] == ["sleep 1 budget a", "wake b"], "what sleeps is woken, not loaded again"


def test_as_few_as_possible_make_room():
    sim = fleet(terms("small", 1), terms("large", 3), terms("new", 3), budget=4)
    for name in ("small", "large", "new"):
        sim.request(name)
        sim.run(20)
    assert sim.said("sleep") == ["sleep 1 budget large"], "the small one was used longer ago, and is not enough"


def test_two_that_fit_load_at_the_same_time():
    sim = fleet(terms("a"), terms("b"), budget=2)
    sim.request("a")
    sim.request("b")
    assert states(sim) == {"a": "loading", "b": "loading"}


def test_several_make_room_for_several_at_once():
    sim = fleet(*(terms(name) for name in "abcd"), budget=2)
    sim.request("a"), sim.request("b")
    sim.run(20)
    sim.request("c"), sim.request("d")
    assert sim.said("sleep") == ["sleep 1 budget a", "sleep 1 budget b"]
    sim.run(20)
    assert states(sim) == {"a": "sleeping", "b": "sleeping", "c": "awake", "d": "awake"}


def test_an_idle_model_makes_room_soon_even_within_its_slice():
    sim = fleet(terms("a"), terms("b"), slice_s=5)
    sim.request("a")
    sim.run(3.1)  # 2 s to load, 1 s to run
    b = sim.request("b")
    sim.run(20)
    assert sim.said("sleep", "admit") == ["admit a", "sleep 1 budget a", "admit b"]
    assert b.is_over and sim.waits[1] == pytest.approx(0.4 + 0.2 + 2), "half a second of grace, its sleep, the load"


def test_interleaved_requests_are_computed_in_batches_of_one_model():
    sim = fleet(terms("a"), terms("b"), slice_s=5)
    for number in range(60):  # two clients, a request each second
        sim.at(number, lambda: sim.request("a", 0.9))
        sim.at(number + 0.5, lambda: sim.request("b", 0.9))
    sim.run()
    assert len(sim.waits) == 120 and not sim.refused
    num_swaps = len(sim.said("load", "wake"))
    assert num_swaps <= 16, "not one swap per request, and one in 5 s at the most"
    assert max(sim.waits) < 16


def test_a_busy_model_closes_for_others_once_its_slice_has_passed():
    sim = fleet(terms("a"), terms("b"), slice_s=5)
    for number in range(200):  # never idle: each request runs for 3 s, and one comes each second
        sim.at(number, lambda: sim.request("a", 3))
    sim.run(20)
    sim.request("b", 0.1)
    assert sim.policy.records["a"].is_closing, "the slice has passed long ago"
    sim.run(3.3)
    assert states(sim)["b"] == "loading" and len(sim.policy.records["a"].waiting) >= 3
    sim.run()
    assert len(sim.waits) == 201 and not sim.refused


def test_a_model_opens_again_if_the_one_that_waited_has_gone():
    sim = fleet(terms("a"), terms("b"))
    sim.request("a", 100)
    sim.run(20)
    b = sim.request("b")
    late = sim.request("a", 1)
    assert not late.is_admitted
    sim.policy.leave(b)
    assert late.is_admitted and states(sim)["b"] == "unloaded"


def test_the_one_that_waits_longest_is_next():
    sim = fleet(*(terms(name) for name in "abc"), slice_s=2)
    sim.request("a", 10)
    sim.run(5)
    sim.request("c", 0.1)
    sim.run(0.5)
    sim.request("b", 0.1)
    sim.run()
    assert sim.said("admit") == ["admit a", "admit c", "admit b"]


def test_a_younger_small_model_takes_no_memory_that_an_older_large_one_waits_for():
    sim = fleet(terms("large", 4), terms("a", 2), terms("small", 1), budget=4, slice_s=2)
    sim.request("a", 10)
    sim.run(5)
    sim.request("large", 1)
    sim.request("small", 1)
    assert states(sim)["small"] == "unloaded", "two are free, and the large one needs them"
    sim.run()
    assert sim.said("admit") == ["admit a", "admit large", "admit small"]


def test_no_request_waits_past_its_bound():
    sim = fleet(terms("a"), terms("b", bound_s=30))
    sim.request("a", 100)
    sim.run(10)
    sim.request("b")
    sim.run(29)
    assert not sim.refused
    sim.run(1)
    [(ticket, error)] = sim.refused
    assert isinstance(error, ModelUnavailableError) and ticket.is_over
    assert "no room for the model 'b' within 30 s: it needs 1.0 GiB of 1.0 GiB, which others hold (a 1.0 GiB)" in str(
        error
    )


def test_a_slow_load_is_bounded_too_and_goes_on():
    sim = fleet(terms("a", bound_s=30), load_s=50)
    sim.request("a")
    sim.run(31)
    assert "was not awake within 30 s; it still is loading" in str(sim.refused[0][1])
    sim.run(30)
    assert states(sim)["a"] == "awake"


def test_pinned_models_stay():
    sim = fleet(terms("a", is_pinned=True), terms("b"), terms("c"), budget=2)
    for name in ("a", "b", "c"):
        sim.request(name)
        sim.run(20)
    assert sim.said("sleep") == ["sleep 1 budget b"]


def test_what_can_never_fit_is_refused_with_figures():
    with pytest.raises(ConfigError, match=r"'b' needs 3.0 GiB \(weights 3.0 GiB.*budget is 2.0 GiB"):
        fleet(terms("a"), terms("b", 3), budget=2)
    with pytest.raises(ConfigError, match="'b' needs 1.5 GiB .* of which pinned models hold 1.0 GiB"):
        fleet(terms("a", is_pinned=True), terms("b", 1.5), budget=2)


def test_a_failed_load_answers_all_that_wait_and_is_tried_again():
    sim = fleet(terms("a"), terms("b"), budget=2, failing={"a": 2})
    sim.request("a"), sim.request("a"), sim.request("b")
    sim.run(2.5)
    assert [type(error) for _, error in sim.refused] == [ModelLoadError] * 2
    assert states(sim) == {"a": "failed", "b": "awake"} and sim.policy.held_bytes == GIB
    with pytest.raises(ModelUnavailableError, match="failed: the disk is on fire; it is tried again in"):
        sim.policy.ask("a")
    sim.run(1)
    sim.request("a")
    sim.run(2.5)
    with pytest.raises(ModelUnavailableError) as caught:
        sim.policy.ask("a")
    assert caught.value.retry_s > 1, "each failure doubles the time"
    sim.run(10)
    sim.request("a")
    sim.run(10)
    assert states(sim)["a"] == "awake" and sim.policy.records["a"].failure is None


def test_a_model_whose_engine_died_is_loaded_again():
    sim = fleet(terms("a"))
    sim.request("a", 0.5)
    sim.run(10)
    sim.policy.lost("a", "step 7 failed")
    sim.run(1)
    assert states(sim)["a"] == "failed" and sim.policy.held_bytes == 0
    sim.request("a")
    sim.run(10)
    assert sim.said(*CHANGES) == ["load a", "unload fault a", "load a"]


def test_too_many_that_wait_are_refused():
    sim = fleet(terms("a", max_waiting=2))
    sim.request("a"), sim.request("a")
    with pytest.raises(ModelUnavailableError, match="2 requests wait already for the model 'a'"):
        sim.policy.ask("a")


def test_idle_models_descend_their_own_ladder():
    rungs = parse_sleep_after("60s:1,10m:2")
    sim = fleet(terms("a", rungs=rungs), terms("b"), budget=2)
    sim.request("a"), sim.request("b")
    sim.run(3000)
    assert sim.said("sleep") == ["sleep 1 idle a", "sleep 2 idle a"]
    assert [time for time, what, _ in sim.log if what.startswith("sleep")] == pytest.approx([163, 703], abs=0.5)
    sim.request("a", keep_alive=5.0)
    sim.run(20)
    assert sim.said("sleep")[2:] == ["sleep 1 idle a"], "a request says for how long its model stays"
    sim.request("a", keep_alive=-1.0)
    sim.run(3000)
    assert states(sim)["a"] == "awake"
    sim.request("b", keep_alive=5.0)
    sim.run(20)
    assert sim.said("sleep")[3:] == ["sleep 1 idle b"], "without a ladder, too"


def test_rungs_that_an_eviction_has_reached_are_left_out():
    sim = fleet(terms("a", rungs=parse_sleep_after("60s:1,10m:2")), terms("b"))
    sim.request("a")
    sim.run(20)
    sim.request("b")
    sim.run(3000)
    assert sim.said("sleep") == ["sleep 1 budget a", "sleep 2 idle a"]


def test_what_sleeps_is_unloaded_if_even_that_memory_is_needed():
    sim = fleet(terms("a", 1, 0.25), terms("b", 1, 0.25), terms("c", 2, 0.25), budget=2.25)
    for name in ("a", "b", "c"):
        sim.request(name)
        sim.run(20)
    assert sim.said("sleep", "unload") == ["unload budget a", "unload budget b"], "asleep they would hold too much"
    assert states(sim) == {"a": "unloaded", "b": "unloaded", "c": "awake"}


def test_a_model_that_is_unloaded_to_make_room():
    sim = fleet(terms("a", eviction=None), terms("b"))
    sim.request("a")
    sim.run(20)
    sim.request("b")
    sim.run(20)
    assert sim.said(*CHANGES) == ["load a", "unload budget a", "load b"]


def test_a_model_whose_backup_stays_in_the_same_memory_is_unloaded():
    sim = fleet(terms("a", 1, 0.8, eviction=SleepRung(0, 1, "ram")), terms("b"))
    sim.request("a")
    sim.run(20)
    sim.request("b")
    sim.run(20)
    assert sim.said(*CHANGES) == ["load a", "unload budget a", "load b"], "its sleep would free too little"


def test_measured_needs_correct_the_plan():
    sim = fleet(terms("a"), terms("b"), terms("c"), budget=2)
    sim.request("a"), sim.request("b")
    sim.run(20)
    assert sim.policy.begin_sleep("a")
    sim.policy.slept("a", 1, awake_bytes=int(1.5 * GIB), asleep_bytes=int(0.125 * GIB))
    assert sim.policy.held_bytes == 1.125 * GIB and sim.policy.records["a"].need.awake_bytes == 1.5 * GIB
    sim.request("a")
    sim.run(20)
    assert sim.said("sleep") == ["sleep 1 budget b"], "it does not fit beside the other any more"
    assert sim.policy.begin_sleep("a")
    sim.policy.slept("a", 1, awake_bytes=3 * GIB)
    sim.policy.ask("a")
    assert "needs 3.0 GiB" in str(sim.refused[-1][1]), "measured, it can never fit"
    assert states(sim)["a"] == "failed"


def test_a_surplus_is_given_back():
    sim = fleet(terms("a"), terms("b"), budget=2)
    sim.request("a"), sim.request("b")
    sim.run(20)
    sim.check = lambda: None  # the measured model is above the budget at once
    sim.policy.awake("b", weights_bytes=int(1.25 * GIB))
    assert sim.said("sleep") == ["sleep 1 budget a"]


def test_calls_pause_and_unload():
    sim = fleet(terms("a"), terms("b"))
    sim.request("a", 3)
    sim.run(3)
    sim.policy.ask_unload("a")
    later = sim.request("a")
    assert not later.is_admitted, "it closes"
    sim.run()
    assert sim.said(*CHANGES) == ["load a", "unload call a", "load a"]
    sim.policy.pause("a", True)
    sim.request("b")
    sim.run(20)
    assert states(sim)["a"] == "awake", "only a call ends a pause"
    sim.policy.pause("a", False)
    sim.run(20)
    assert states(sim)["b"] == "awake"


def test_requests_that_a_sleep_by_call_keeps_are_not_lost():
    sim = fleet(terms("a"), terms("b"))
    sim.request("a", 1000)
    sim.run(20)
    assert sim.policy.begin_sleep("a")
    sim.policy.slept("a", 1, asleep_bytes=GIB // 8)
    sim.request("b")
    sim.run(20)
    assert sim.said("unload") == [], "what sleeps with running requests is not unloaded"


def test_the_end_answers_all_that_wait():
    sim = fleet(terms("a"), terms("b"))
    sim.request("a", 100), sim.request("b")
    sim.policy.close(EngineDeadError("the server is shutting down"))
    assert len(sim.refused) == 2


@pytest.mark.parametrize("seed", range(6))
def test_random_load(seed):
    """Requests, aborts, failures, calls and ladders: the invariants hold after each event, and all requests end."""
    rng = random.Random(seed)
    names = [f"m{number}" for number in range(rng.randint(2, 7))]
    sizes = {name: rng.uniform(0.3, 2.0) for name in names}
    budget = max(sizes.values()) + rng.uniform(0.0, 2.5)
    models = [
        terms(
            name,
            size,
            size * rng.choice((0.0, 0.05, 0.5)),
            bound_s=rng.choice((20.0, 60.0, 300.0)),
            eviction=rng.choice((None, SleepRung(0, 1, "auto"), SleepRung(0, 2, "auto"))),
            rungs=rng.choice(((), parse_sleep_after("30s:1,2m:2"))),
            is_pinned=sizes[names[0]] + max(sizes.values()) <= budget and name == names[0],
        )
        for name, size in sizes.items()
    ]
    sim = fleet(*models, budget=budget, slice_s=rng.choice((0.0, 1.0, 5.0)))
    tickets = []

    def arrive() -> None:
        name = rng.choice(names)
        try:
            ticket = sim.request(name, rng.expovariate(1 / rng.choice((0.2, 2, 20))))
        except ModelUnavailableError:
            return
        tickets.append(ticket)
        if rng.random() < 0.2:
            sim.at(rng.expovariate(1 / 5), lambda: sim.policy.leave(ticket))

    def fault() -> None:
        name = rng.choice(names)
        choice = rng.random()
        record = sim.policy.records[name]
        if choice < 0.4:
            sim.failing[name] = rng.randint(0, 2)
        elif choice < 0.6:
            sim.policy.lost(name, "died")
            if record.phase == "unloading":  # its requests fail with it
                for ticket in [each for each in tickets if each.model == name and each.is_admitted]:
                    sim.policy.leave(ticket)
        elif choice < 0.8:
            sim.policy.ask_unload(name)
        elif record.phase == "awake" and not record.num_open and sim.policy.begin_sleep(name):
            sim.at(0.3, lambda: sim.policy.slept(name, 1))

    at = 0.0
    for _ in range(3000):
        at += rng.expovariate(rng.choice((0.2, 2.0, 10.0)))
        sim.at(at, arrive if rng.random() < 0.97 else fault)
    sim.run()
    assert all(ticket.is_over for ticket in tickets), "every request ends"
    assert all(record.is_idle for record in sim.policy.records.values())
    assert len(sim.waits) + len(sim.refused) > 2000
    assert len(sim.waits) > 1000
