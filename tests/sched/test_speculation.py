"""Drafts: verified with what nothing else needs, and without them the same tokens come out."""

import random

import pytest
from kit.sched.simulation import Simulation

from lullm.errors import InvalidRequestError
from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.types.packed import unpack
from lullm.types.step import DrawnToken, StepPlan, StepResult


def answers(
    seed: int, num_requests: int = 100, evicts_every: int = 1000, **options: object
) -> tuple[dict[str, list], Simulation]:
    """What random requests draw; after `evicts_every` requests each, all that run lose their blocks."""
    rng = random.Random(seed)
    sim = Simulation(max_num_seqs=8, max_model_len=40, **options)
    groups = []
    for number in range(num_requests):
        prompt = [rng.randrange(2) for _ in range(rng.choice([1, 3, 4, 8, 15, 30]))]
        kind = rng.choice([{}, {}, {}, {"n": 3}, {"beam_width": 2}, {"presence_penalty": 0.5}, {"min_tokens": 2}])
        end, max_tokens = rng.choice([None, None, 1]), rng.choice([1, 2, 9, 30, None])
        try:
            groups.append(sim.add(str(number), prompt, number % 3, end, max_tokens=max_tokens, **kind))
        except InvalidRequestError:
            continue
        for _ in range(rng.randrange(12)):
            sim.step()
        if number % evicts_every == evicts_every - 1:
            sim.scheduler.evict_all()
    sim.run()
    lines = {g.request_id: [(h.token_ids, h.finish_reason) for h in g.hypotheses] for g in groups}
    return {g.request_id: lines[g.request_id] or [(s.token_ids, s.status) for s in g.seqs] for g in groups}, sim


@pytest.mark.pairs
@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("windows", [(None,), (6,), (None, 6)])
@pytest.mark.parametrize("max_in_flight", [1, 3])
def test_the_same_tokens_in_fewer_steps(mode, windows, max_in_flight):
    for seed in range(2):
        options = {
            "num_blocks": 18 + 12 * len(windows),  # room for any one group, so that none outgrows it
            "num_host_blocks": 40 if mode == "swap" else 0,
            "preemption": PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0)),
            "windows": windows,
            "policy": "priority",
            "max_in_flight": max_in_flight,
        }
        plain, without = answers(seed, **options)
        drafted, sim = answers(seed, most_drafts=4, **options)
        assert drafted == plain
        assert without.scheduler.stats.num_drafts == 0 and sim.scheduler.stats.num_draft_tokens > 50
        assert 20 < sim.scheduler.stats.num_accepted_tokens < sim.scheduler.stats.num_draft_tokens, (
            "some are right, some are not"
        )
        assert sim.block_space.num_used_blocks == sim.block_space.num_used_host_blocks == 0


def test_found_content_is_what_was_accepted():
    """A rejected draft's KV is never found by a later prompt that holds the draft."""
    sim = Simulation(block_size=4, most_drafts=0)
    group = sim.add("a", [1, 0, 1], max_tokens=9)
    seq = group.seqs[0]
    sim.step()
    assert len(seq) == 4
    known = list(seq.token_ids)
    plan = drafting(sim, seq, [0, 1, 0, 1])
    assert [unpack(span.token_ids) for span in plan.spans] == [
        [token] for token in (known[-1], 0, 1, 0, 1)
    ] and seq.num_computed_tokens == 8
    updates = take(sim, plan, [1, 0, 0, 0, 0])
    assert [update.drawn.token_id for update in updates] == [1] and seq.token_ids == [*known, 1]
    assert seq.num_computed_tokens == 4 and sim.block_space.num_used_blocks == 1, "the draft's block is free again"
    sim.block_space.check_conservation()
    sim.scheduler.abort("a")
    other = sim.add("b", [*known, 0, 1, 0, 1, 1], max_tokens=1)
    sim.scheduler.plan()
    assert other.num_cached_tokens == 4


def test_accepted_drafts_are_found():
    sim = Simulation(block_size=4, most_drafts=0)
    group = sim.add("a", [1, 0, 1], max_tokens=9)
    seq = group.seqs[0]
    sim.step()
    known = list(seq.token_ids)
    take(sim, drafting(sim, seq, [0, 1, 0, 1]), [0, 1, 0, 1, 0])
    assert seq.token_ids == [*known, 0, 1, 0, 1, 0] and seq.num_computed_tokens == 8
    sim.scheduler.abort("a")
    other = sim.add("b", [*known, 0, 1, 0, 1, 0, 0], max_tokens=1)
    sim.scheduler.plan()
    assert other.num_cached_tokens == 8


@pytest.mark.parametrize("params, reason", [({"stop_token_ids": [7]}, 7), ({}, None)])
def test_an_end_in_the_middle_drops_the_rest(params, reason):
    sim = Simulation(most_drafts=0)
    group = sim.add("a", [1] * 3, end=None if params else 7, max_tokens=9, **params)
    seq = group.seqs[0]
    sim.step()
    plan = drafting(sim, seq, [6, 7, 8])
    updates = take(sim, plan, [6, 7, 8, 9])
    assert [(u.drawn.token_id, u.is_end) for u in updates] == [(6, False), (7, True)]
    assert seq.token_ids[-2:] == [6, 7] and seq.stop_reason == reason and group.is_finished
    assert sim.block_space.num_used_blocks == 0


def test_no_draft_beyond_a_length():
    for prompt_len, max_tokens, most in ((2, 3, 2), (4, None, 3)):  # most: tokens that may still come
        sim = Simulation(max_model_len=8, most_drafts=0)
        group = sim.add("a", [1] * prompt_len, max_tokens=max_tokens)
        sim.step()
        spans = drafting(sim, group.seqs[0], [1] * 9).spans
        assert [span.start for span in spans] == list(range(prompt_len, prompt_len + most))
        assert [draw.output_len for span in spans for draw in span.draws] == list(range(1, 1 + most))


def test_drafts_take_what_nothing_else_needs():
    sim = Simulation(max_num_seqs=3, max_num_batched_tokens=8, most_drafts=0)
    a, b = (sim.add(name, [1] * 3, max_tokens=30).seqs[0].seq_id for name in "ab")
    sim.step()
    sim.guesser.said = {a: [0] * 9, b: [0] * 9}
    plan = sim.scheduler.plan()
    assert [span.seq_id for span in plan.spans] == [a, a, b], "three draws in a step, two of them have a seat"
    assert not sim.scheduler.can_plan, "how many drafts are right must be known"
    take(sim, plan, [1, 1, 1])
    sim.guesser.said = {a: [0] * 9, b: [0] * 9}
    sim.add("waits", [1] * 30, n=2)
    assert [span.seq_id for span in sim.scheduler.plan().spans][:2] == [a, b], "requests that wait come first"


def test_no_draft_takes_the_last_block_of_another():
    sim = Simulation(num_blocks=4, block_size=4, watermark=0.0, enable_prefix_caching=False, most_drafts=0)
    groups = [sim.add(name, [1] * 3, max_tokens=30) for name in "ab"]
    sim.step()  # each has a full block and needs a second one next
    sim.step()
    plan = drafting(sim, groups[0].seqs[0], [0] * 9)
    assert sim.scheduler.preemption.num_preemptions == 0
    assert len(plan.spans) > 2 and sim.block_space.num_used_blocks <= 4


@pytest.mark.parametrize("kind", [{"beam_width": 2}, {"presence_penalty": 0.5}])
def test_no_drafts_for_beams_and_draws_that_read_tokens(kind):
    sim = Simulation(most_drafts=9)
    sim.add("a", [1] * 3, max_tokens=9, **kind)
    sim.run()
    assert sim.scheduler.stats.num_drafts == 0


def test_no_drafts_before_the_first_token_which_forks_share():
    sim = Simulation(most_drafts=9)
    group = sim.add("a", [1] * 3, max_tokens=9, n=2)
    sim.guesser.said[group.seqs[0].seq_id] = [1, 1]
    assert len(sim.scheduler.plan().spans) == 1


def drafting(sim: Simulation, seq, drafts: list[int]) -> StepPlan:
    sim.guesser.said[seq.seq_id] = drafts
    return sim.scheduler.plan()


def take(sim: Simulation, plan: StepPlan, token_ids: list[int]):
    """Apply a plan of which the draws gave these tokens."""
    draws = [draw for span in plan.spans for draw in span.draws]
    tokens = [DrawnToken(draw.seq_id, token_id) for draw, token_id in zip(draws, token_ids, strict=True)]
    return sim.scheduler.apply(plan, StepResult(tokens))
