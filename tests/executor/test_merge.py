"""The merge rules over the answers of 1, 2 and 4 workers."""

import pytest

from lullm.errors import LullmError
from lullm.executor.merge import agreed, merged_reports, minimum, values
from lullm.executor.workers import Answer
from lullm.types.sleep import Released, SleepForecast, WakeReport

NUM_WORKERS = pytest.mark.parametrize("n", [1, 2, 4])


@NUM_WORKERS
def test_values_are_by_rank(n):
    assert values([Answer(rank) for rank in range(n)]) == list(range(n))


@NUM_WORKERS
def test_the_first_failure_by_rank_wins_and_names_the_others(n):
    answers = [Answer(error=OSError(28, f"disk {rank}")) for rank in range(n)]
    with pytest.raises(OSError, match="disk 0") as caught:
        values(answers)
    notes = getattr(caught.value, "__notes__", [])
    assert notes == [f"worker {rank} failed, too: OSError: [Errno 28] disk {rank}" for rank in range(1, n)]


def test_a_failure_behind_a_success_is_found():
    with pytest.raises(ValueError, match="third"):
        values([Answer(1), Answer(2), Answer(error=ValueError("third")), Answer(4)])


@NUM_WORKERS
def test_the_minimum_is_of_each_side(n):
    assert minimum([(10 - rank, 5.0 + rank) for rank in range(n)]) == (10 - (n - 1), 5.0)


@NUM_WORKERS
def test_releases(n):
    reports = [Released(("weights", "kv_cache")[: 1 + rank], 10 * rank, rank, 1.0 + rank) for rank in range(n)]
    merged = merged_reports(reports)
    ranks = sum(range(n))
    assert merged == Released(("weights", "kv_cache")[:n], 10 * ranks, ranks, float(n), None)


def test_the_first_refusal_by_rank_is_told():
    reports = [Released((), 0, 0, 0.0, refusal) for refusal in (None, "second", None, "fourth")]
    assert merged_reports(reports).refusal == "second"


def test_tags_come_in_one_order():
    first, second = (WakeReport((tag,), 1, 1.0) for tag in ("kv_cache", "weights"))
    assert merged_reports([first, second]) == WakeReport(("weights", "kv_cache"), 2, 1.0)


@NUM_WORKERS
def test_forecasts(n):
    found = merged_reports([SleepForecast(2, ("kv_cache",), 100, 7, 1.0 + rank, 9.0 - rank) for rank in range(n)])
    assert found == SleepForecast(2, ("kv_cache",), 100 * n, 7 * n, float(n), 9.0)


@NUM_WORKERS
def test_agreement(n):
    assert agreed([["a"]] * n, "names") == ["a"]
    if n > 1:
        with pytest.raises(LullmError, match="disagree about names"):
            agreed([["a"]] * (n - 1) + [["b"]], "names")
