"""Of a product of parameters, few rows hold all pairs, and half of them each value."""

from itertools import combinations, product

import pytest
from kit.pairs import checkered, covering


@pytest.mark.parametrize("sizes", [(5, 9, 2, 5), (2, 2, 3), (4, 3), (3, 1, 1), (7,)])
def test_all_pairs_in_few_rows(sizes):
    rows = list(product(*map(range, sizes)))
    kept = [rows[place] for place in covering(rows)]
    for i, j in combinations(range(len(sizes)), 2):
        assert len({(row[i], row[j]) for row in kept}) == sizes[i] * sizes[j]
    assert {value for value, *_ in kept} == set(range(sizes[0]))
    if len(sizes) > 2:
        first, second = sorted(sizes)[-2:]
        assert len(kept) <= 1.5 * first * second


def test_only_what_is_there_is_asked_for():
    assert covering([(0, 0, 0), (1, 1, 1)]) == {0, 1}
    assert covering([]) == set()


def test_black_squares():
    rows = list(product(range(3), range(4)))
    kept = [rows[place] for place in checkered(rows)]
    assert len(kept) == 6 and {i for i, _ in kept} == {0, 1, 2} and {j for _, j in kept} == {0, 1, 2, 3}
    assert checkered([("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]) == {0, 3}
    assert checkered([("a",), ("b",)]) == {0, 1}


@pytest.mark.half
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
def test_half_of_a_product(request, first, second):
    assert first == second or request.node.get_closest_marker("slow")
