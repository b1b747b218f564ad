"""Seconds of a step by its number of rows: what was measured, and the lines between."""

import pytest

from lullm.sched.guess.costs import StepCosts


def costs_of(measured: dict[int, float]) -> StepCosts:
    costs = StepCosts()
    for num_rows, seconds in measured.items():
        costs.add(num_rows, 100.0)  # the first step of a size is recorded
        costs.add(num_rows, seconds)
    return costs


def test_nothing_is_known_before_the_second_step():
    costs = StepCosts()
    assert costs.is_empty and costs.seconds(1) is None and costs.smallest == 0
    costs.add(4, 1.0)
    assert costs.is_empty
    costs.add(4, 1.0)
    assert not costs.is_empty and costs.smallest == 4
    costs.add(2, 0.0)
    costs.add(2, 0.0)
    assert costs.smallest == 4, "a step without a time is no measurement"


def test_lines_between_measurements():
    costs = costs_of({2: 1.0, 10: 5.0, 4: 2.0})
    found = [costs.seconds(num_rows) for num_rows in (1, 2, 3, 4, 7, 10, 12)]
    assert found == pytest.approx([1.0, 1.0, 1.5, 2.0, 3.5, 5.0, 6.0])
    assert costs_of({2: 1.0}).seconds(64) == 1.0, "what was never tried is taken for cheap"
    assert costs_of({2: 1.0, 8: 0.5}).seconds(9) == 0.5, "more rows take no less"


def test_one_slow_step_changes_little_and_many_do():
    costs = costs_of({2: 1.0})
    for seconds in (1.1, 0.9, 50.0):
        costs.add(2, seconds)
    assert costs.seconds(2) == pytest.approx(1.05)
    for _ in range(3):
        costs.add(2, 3.0)
    assert costs.seconds(2) == 3.0
