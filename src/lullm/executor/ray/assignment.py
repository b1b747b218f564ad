"""The node and the number of cores of each worker. Pure functions of the free resources of nodes."""

from collections.abc import Mapping, Sequence


def assign_nodes(slots: Mapping[str, int], num_stages: int, tensor_size: int) -> list[str] | None:
    """The node of every rank; None: there are too few slots.

    The workers of a stage sum up in every layer, so they share a node wherever one has room for all of them. As many
    stages as possible are whole: a node takes `slots // tensor_size` of them. The rest is split.

    Args:
        slots: node -> how many workers it can take, in the order in which nodes are filled.
    """
    free = dict(slots)
    if sum(free.values()) < num_stages * tensor_size:
        return None
    found: list[str] = []
    for node in free:
        while len(found) < num_stages * tensor_size and free[node] >= tensor_size:
            found += [node] * tensor_size
            free[node] -= tensor_size
    for node, left in free.items():
        found += [node] * min(left, num_stages * tensor_size - len(found))
    return found


def splits_stage(nodes: Sequence[str], tensor_size: int) -> bool:
    """Whether the workers of a stage are on several nodes."""
    return any(len(set(nodes[first : first + tensor_size])) > 1 for first in range(0, len(nodes), tensor_size))


def most_cores(cores: Mapping[str, int], num_stages: int, tensor_size: int) -> int:
    """The most cores that every worker can have, on nodes with so many free cores; 0: less than one each.

    Fewer cores are better than a split stage: sums over a network cost more than cores gain.
    """
    split = 0
    for number in range(max(cores.values(), default=0), 0, -1):
        nodes = assign_nodes({node: count // number for node, count in cores.items()}, num_stages, tensor_size)
        if nodes is not None and not splits_stage(nodes, tensor_size):
            return number
        if nodes is not None:
            split = split or number
    return split
