"""Which node each worker goes to."""

import itertools

import pytest

from lullm.executor.ray.assignment import assign_nodes, most_cores, splits_stage


@pytest.mark.parametrize(
    ("slots", "num_stages", "tensor_size", "nodes"),
    [
        ({"a": 1}, 1, 1, "a"),
        ({"a": 4, "b": 4}, 1, 2, "aa"),
        ({"a": 2, "b": 2}, 2, 2, "aabb"),
        ({"a": 1, "b": 2}, 1, 2, "bb"),
        ({"a": 3, "b": 2}, 2, 2, "aabb"),
        ({"a": 3, "b": 1}, 2, 2, "aaab"),
        ({"a": 1, "b": 1}, 1, 2, "ab"),
        ({"a": 1, "b": 1}, 2, 1, "ab"),
        ({"a": 1, "b": 4, "c": 3}, 2, 3, "bbbccc"),
        ({"a": 1}, 1, 2, None),
        ({}, 1, 1, None),
    ],
)
def test_assigned(slots, num_stages, tensor_size, nodes):
    assert assign_nodes(slots, num_stages, tensor_size) == (None if nodes is None else list(nodes))


def test_no_stage_is_split_that_could_be_whole():
    """All small clusters: as many stages are whole as nodes can take whole, and no slot is used twice."""
    for counts in itertools.product(range(5), repeat=3):
        slots = dict(zip("abc", counts, strict=True))
        for num_stages, tensor_size in itertools.product((1, 2, 3), (1, 2, 3)):
            nodes = assign_nodes(slots, num_stages, tensor_size)
            if sum(counts) < num_stages * tensor_size:
                assert nodes is None
                continue
            assert len(nodes) == num_stages * tensor_size
            assert all(nodes.count(node) <= slots[node] for node in slots)
            stages = [nodes[first : first + tensor_size] for first in range(0, len(nodes), tensor_size)]
            whole = sum(len(set(stage)) == 1 for stage in stages)
            assert whole >= min(num_stages, sum(count // tensor_size for count in counts))
            assert splits_stage(nodes, tensor_size) == (whole < num_stages)


@pytest.mark.parametrize(
    ("cores", "num_stages", "tensor_size", "number"),
    [
        ({"a": 8}, 1, 1, 8),
        ({"a": 8}, 1, 3, 2),
        ({"a": 8, "b": 8}, 2, 1, 8),
        ({"a": 8, "b": 8}, 1, 3, 2),  # 4 with a stage that is split
        ({"a": 1, "b": 1}, 1, 2, 1),  # split, or not at all
        ({"a": 1}, 1, 2, 0),
        ({}, 1, 1, 0),
    ],
)
def test_the_most_cores(cores, num_stages, tensor_size, number):
    assert most_cores(cores, num_stages, tensor_size) == number
