"""Products of parameters, thinned: `-m slow` runs all others.

- `@pytest.mark.pairs`: each pair of values of three or more parameters. A fault that shows with one value, or with two
  of them together, is still met.
- `@pytest.mark.half`: the black squares of a board of two parameters. Each value is met with half of the others.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from typing import Any

import pytest

Row = tuple[Any, ...]


def thin(items: Iterable[pytest.Item]) -> None:
    """Mark those as slow that are left away, before pytest selects by marks."""
    for name, keep in KINDS.items():
        products = defaultdict(list)
        for item in items:
            if item.get_closest_marker(name) and not item.get_closest_marker("slow"):
                products[item.path, item.nodeid.partition("[")[0]].append(item)
        for product in products.values():
            kept = keep(list(map(_values, product)))
            for place, item in enumerate(product):
                if place not in kept:
                    item.add_marker(pytest.mark.slow)


def _values(item: pytest.Item) -> Row:
    """Names of what each `parametrize` gives a test."""
    return tuple(item.callspec._idlist)


def covering(rows: Sequence[Row]) -> set[int]:
    """Places of rows, few, in which all pairs of values stand that stand together in any row."""
    if rows and len(rows[0]) < 2:
        return set(range(len(rows)))
    pairs = [{((i, row[i]), (j, row[j])) for i, j in combinations(range(len(row)), 2)} for row in rows]
    missing = set().union(*pairs)
    order = list(range(len(rows)))
    random.Random(0).shuffle(order)
    kept: set[int] = set()
    for at_least in range(max(map(len, pairs), default=0), 0, -1):
        for place in order:
            if len(pairs[place] & missing) >= at_least:
                kept.add(place)
                missing -= pairs[place]
    return kept


def checkered(rows: Sequence[Row]) -> set[int]:
    """Places of rows in which the sum of the values' places is even. All, if there is but one value in each."""
    columns = [list(dict.fromkeys(column)) for column in zip(*rows, strict=True)]
    sums = [sum(column.index(value) for column, value in zip(columns, row, strict=True)) for row in rows]
    return {place for place, number in enumerate(sums) if len(columns) < 2 or number % 2 == 0}


KINDS: dict[str, Callable[[Sequence[Row]], set[int]]] = {"pairs": covering, "half": checkered}
