"""One answer of several engines."""

import dataclasses

import pytest

from lullm.engine.replica.merge import (
    merged_load,
    merged_move,
    merged_occupancy,
    merged_state,
    merged_stats,
)
from lullm.executor.merge import merged_reports
from lullm.types.monitor.occupancy import (
    CACHED_CELL,
    FIRST_OWNER_CELL,
    MAX_OWNERS,
    SHARED_CELL,
    Occupancy,
    PoolOccupancy,
    RequestOccupancy,
)
from lullm.types.monitor.stats import EngineStats, TokenGaps
from lullm.types.parallel.experts import ExpertLoad, ExpertMove
from lullm.types.sleep import SleepReport, WakeReport


def test_counters_and_gauges_are_summed():
    one = EngineStats(1, 20, 3, num_blocks=8, preemptions_total={("swap", "cheaper"): 2}, finished_total={"stop": 1})
    gaps = TokenGaps(counts=tuple(range(20)), sum_s=1.5)
    one = dataclasses.replace(one, accepted_by_position_total=(5,), draft_seconds_total=0.5)
    other = EngineStats(2, 5, num_blocks=9, finished_total={"stop": 2, "abort": 1}, token_gaps=gaps)
    other = dataclasses.replace(other, accepted_by_position_total=(4, 2), draft_seconds_total=1.0)
    found = merged_stats([one, other])
    assert (found.num_running, found.num_running_prompt_tokens, found.num_waiting, found.num_blocks) == (3, 25, 3, 17)
    assert found.preemptions_total == {("swap", "cheaper"): 2} and found.finished_total == {"stop": 3, "abort": 1}
    assert found.token_gaps == gaps
    assert (found.accepted_by_position_total, found.draft_seconds_total) == ((9, 2), 1.5)
    assert merged_stats([other]) == other, "nothing is left out"


def test_experts_of_all_engines():
    one = ExpertLoad({3: [1, 2]}, {3: [[0], [1]]})
    other = ExpertLoad({3: [5, 0]}, {3: [[1], [0]]})
    found = merged_load([one, other, one])
    assert found.tokens == {3: [7, 4]} and found.workers == {3: [[0, 3, 4], [1, 2, 5]]}
    assert merged_load([one]) == one and merged_load([ExpertLoad({}, {})] * 2) == ExpertLoad({}, {})
    assert merged_move([ExpertMove(2, 0.5, 1.0, 0.1), ExpertMove(4, 0.7, 0.9, 0.3)]) == ExpertMove(
        6, 0.6, pytest.approx(0.95), 0.3
    )
    stats = [EngineStats(expert_balance=0.5), EngineStats(expert_balance=0.7), EngineStats()]
    assert merged_stats(stats).expert_balance == pytest.approx(0.6)


def test_sleeps_that_ran_at_the_same_time():
    both = [SleepReport(1, ("weights",), 10, 1, 0.5), SleepReport(1, ("weights", "kv_cache"), 20, 2, 0.25)]
    assert merged_reports(both) == SleepReport(1, ("weights", "kv_cache"), 30, 3, 0.5)
    woken = [WakeReport((), 0, 0.0), WakeReport(("kv_cache",), 5, 1.0)]
    assert merged_reports(woken) == WakeReport(("kv_cache",), 5, 1.0)
    assert merged_state(["awake", "awake"]) == "awake" and merged_state(["awake", "discard_all"]) == "partial"


def picture(cells, *names):
    requests = tuple(RequestOccupancy(name, "running", 4, 2, 1) for name in names)
    pool = PoolOccupancy(len(cells), 1, bytes(cells))
    return Occupancy(16, pool, PoolOccupancy(2, 1, bytes(2)), requests, 100, 0.5)


def test_owners_are_numbered_through():
    first = picture([0, FIRST_OWNER_CELL, FIRST_OWNER_CELL + 1 | SHARED_CELL], "a", "b")
    second = picture([CACHED_CELL, FIRST_OWNER_CELL | SHARED_CELL], "c")
    found = merged_occupancy([first, second])
    assert [each.request_id for each in found.requests] == ["a", "b", "c"]
    assert list(found.device.cells) == [
        *first.device.cells, CACHED_CELL, FIRST_OWNER_CELL + 2 | SHARED_CELL,
    ]  # fmt: skip
    assert (found.device.num_blocks, found.host.num_blocks, found.resident_bytes) == (5, 4, 200)


def test_more_owners_than_numbers_share_the_last():
    many = picture([FIRST_OWNER_CELL] * 3, *map(str, range(MAX_OWNERS)))
    found = merged_occupancy([many, many])
    assert len(found.requests) == MAX_OWNERS
    assert list(found.device.cells[3:]) == [FIRST_OWNER_CELL + MAX_OWNERS - 1] * 3
