"""Which experts change places: every worker keeps its number of experts, and the busiest has less to do."""

import random

import pytest
from kit.worker.fakes import FakeExecutor

from lullm.errors import ConfigError, LullmError, UnsupportedError
from lullm.executor.expert_balance import (
    after_swaps,
    check_movable,
    even_swaps,
    load_of,
    merged_experts,
    num_moved,
)
from lullm.types.parallel.experts import ExpertLoad, LayerExperts


def layer(load, num_workers=2, slots=None, number=0, form="packed"):
    return LayerExperts(number, tuple(load), tuple(slots or range(len(load))), len(load) // num_workers, form)


def work_of(experts):
    work = [0] * (len(experts.slots) // experts.num_own)
    for load, slot in zip(experts.load, experts.slots, strict=True):
        work[slot // experts.num_own] += load
    return work


def test_the_busiest_experts_part():
    experts = layer([90, 80, 1, 2, 3, 4, 5, 6])
    [swap] = swaps = even_swaps(experts)
    found = after_swaps(experts, swaps)
    assert work_of(experts) == [173, 18] and max(work_of(found)) <= 101
    assert swap[0] in (0, 1) and swap[1] >= 4 and num_moved([experts], [found]) == 2
    assert load_of([experts]).balance == pytest.approx(191 / 2 / 173)
    assert load_of([found]).balance > 0.94
    assert even_swaps(found) == [], "once is enough"


def test_what_is_even_stays():
    for load in ([1] * 8, [0] * 8, [5, 1, 5, 1], [9, 0, 0, 9]):
        assert even_swaps(layer(load)) == []
    assert load_of([layer([0] * 8)]).balance == 1.0, "nothing is known"


def test_any_load_from_any_places():
    rng = random.Random(0)
    for _ in range(300):
        num_workers = rng.choice((2, 3, 4, 8))
        count = num_workers * rng.randrange(1, 9)
        slots = rng.sample(range(count), count)
        experts = layer([rng.randrange(100) ** 2 for _ in range(count)], num_workers, slots)
        swaps = even_swaps(experts)
        found = after_swaps(experts, swaps)
        assert sorted(found.slots) == list(range(count)), "one expert in each slot"
        before, after = work_of(experts), work_of(found)
        assert sum(after) == sum(before) and (max(after) < max(before) if swaps else found == experts)
        mean, heaviest = sum(before) / num_workers, max(experts.load)
        assert max(after) <= max(before) and max(after) >= max(mean, heaviest)
        for one, other in swaps:
            assert one // experts.num_own != other // experts.num_own, "what stays on its worker does not move"


def test_stages_tell_of_their_own_layers():
    told = [[layer([1, 2], number=3)], [layer([1, 2], number=3)], [layer([3, 4], number=7)]]
    load = load_of(merged_experts(told))
    assert load.tokens == {3: (1, 2), 7: (3, 4)} and load.workers == {3: [[0], [1]], 7: [[0], [1]]}
    with pytest.raises(LullmError, match="disagree about the experts of layer 3"):
        merged_experts([[layer([1, 2], number=3)], [layer([1, 3], number=3)]])


def test_what_cannot_move():
    check_movable([layer([1, 2])])
    with pytest.raises(ConfigError, match="has no experts"):
        check_movable([])
    with pytest.raises(ConfigError, match="enable_expert_parallel=True"):
        check_movable([layer([1, 2], num_workers=1)])
    with pytest.raises(UnsupportedError, match="experts of layer 5 are not stored in one way"):
        check_movable([layer([1, 2]), layer([1, 2], number=5, form="")])
    [unlike] = merged_experts([[layer([1, 2], form="avx2")], [layer([1, 2], form="amx")]])
    assert unlike.form == "", "workers on other processors"


def test_the_verbs_of_an_executor():
    executor = FakeExecutor(2)
    executor.workers[0].experts = executor.workers[1].experts = [layer([9, 8, 1, 1]), layer([1, 1, 1, 1], number=1)]
    assert executor.expert_load() == ExpertLoad(
        {0: (9, 8, 1, 1), 1: (1, 1, 1, 1)}, dict.fromkeys((0, 1), [[0], [0], [1], [1]])
    )
    assert executor.take_calls() == [(0, "layer_experts"), (1, "layer_experts")]
    move = executor.rebalance_experts()
    assert move.num_moved == 2 and move.before < move.after == 1.0 or move.after > 0.9
    swap = executor.calls[-1]
    assert swap[:2] == (1, "swap_experts") and list(swap[2]) == [0], "only the layer that is uneven"
    executor.expert_load(clear=True)
    assert executor.take_calls()[-1] == (1, "clear_expert_load")
