"""The counter of what a draft model has seen: right through chunks, prefixes, forks, swaps and preemptions.

`DraftMemory` checks at each step that the draft model attends to what it has seen itself.
"""

import pytest
from kit.sched.simulation import Simulation

from lullm.sched.preemption import PreemptionPolicy, Speeds
from lullm.types.packed import unpack
from lullm.types.step import GUESSED_TOKEN

from ..test_speculation import answers


@pytest.mark.parametrize(
    ("mode", "windows", "prefix"),
    [("recompute", (None, 6), True), ("swap", (None,), True), ("swap", (None, 6), False)],
)
def test_the_same_tokens_in_fewer_steps(mode, windows, prefix):
    def options():
        return {
            "num_blocks": 18 + 12 * len(windows),
            "num_host_blocks": 40 if mode == "swap" else 0,
            "preemption": PreemptionPolicy(mode, block_bytes=100, speeds=Speeds(600.0, 10.0)),
            "windows": windows,
            "policy": "priority",
            "enable_prefix_caching": prefix,
        }

    plain, without = answers(1, 60, 20, **options())
    drafted, sim = answers(1, 60, 20, draft_model=3, **options())
    stats = sim.scheduler.stats
    assert drafted == plain and len(sim.plans) < len(without.plans)
    assert stats.num_draft_tokens > 200 and sim.scheduler.preemption.num_preemptions > 0
    assert 0.5 < stats.num_accepted_tokens / stats.num_draft_tokens < 0.9
    assert sum(stats.accepted_by_position) == stats.num_accepted_tokens
    assert sorted(stats.accepted_by_position, reverse=True) == stats.accepted_by_position
    assert sim.block_space.num_used_blocks == sim.block_space.num_used_host_blocks == 0


def test_a_prompt_is_seen_in_pieces_then_guesses_begin():
    sim = Simulation(draft_model=3, max_num_batched_tokens=8)
    sim.add("a", [1] * 20, max_tokens=30)
    while not sim.plans or not sim.plans[-1].draft_spans:
        sim.step()
    for _ in range(3):
        sim.step()
    seen = [[(span.start, span.num_tokens) for span in plan.draft_spans] for plan in sim.plans if plan.draft_spans]
    assert seen[:3] == [[(0, 8)], [(8, 8)], [(16, 7)]]
    guessed = [sum(unpack(span.token_ids) == [GUESSED_TOKEN] for span in plan.spans) for plan in sim.plans[-4:]]
    assert guessed == [0, 0, 3, 3]


def test_what_is_left_to_see_runs_as_decodes_do():
    """One or two tokens, each a span with a draw: a step of nothing else is replayed as recorded."""
    sim = Simulation(draft_model=2, max_model_len=200, num_blocks=100)
    sim.add("a", [1] * 6, max_tokens=100)
    sim.run()
    drafts = [plan.draft_spans for plan in sim.plans if plan.draft_spans][1:]
    assert {len(spans) for spans in drafts} == {1, 2}
    assert all(span.num_tokens == len(span.draws) == 1 for spans in drafts for span in spans)
    for spans in drafts:
        assert [span.start for span in spans] == list(range(spans[0].start, spans[0].start + len(spans)))


@pytest.mark.parametrize("prefix", [True, False])
def test_a_prefix_is_seen_once(prefix):
    sim = Simulation(draft_model=3, enable_prefix_caching=prefix)
    for number in range(4):
        sim.add(str(number), [1] * 20 + [number % 2, 0], max_tokens=6)
        sim.run()
    num_seen = sim.memory.draft.num_seen
    assert num_seen < 60 if prefix else num_seen > 80


def test_forks_share_what_the_first_has_seen():
    sim = Simulation(draft_model=1, max_num_seqs=8)
    sim.add("a", [1] * 20, max_tokens=4, n=3)
    sim.step()
    sim.step()
    lens = [span.num_tokens for span in sim.plans[-1].draft_spans]
    assert lens[0] == 21 and all(num_tokens == 1 for num_tokens in lens[1:])


def test_no_guess_beyond_its_own_length():
    sim = Simulation(draft_model=4)
    sim.guesser._max_model_len = 12
    sim.add("a", [1] * 6, max_tokens=30)
    sim.run()
    assert max(span.end for plan in sim.plans for span in plan.draft_spans) <= 12
    guesses = [s for plan in sim.plans for s in plan.spans if unpack(s.token_ids) == [GUESSED_TOKEN]]
    assert guesses and max(span.end for span in guesses) <= 12
