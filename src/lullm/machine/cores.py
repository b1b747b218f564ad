"""Cores of several workers on one machine: each may use its own, so that none waits for another's.

A worker that runs on the cores of one memory node finds its memory there: a page comes from the node of the thread that
first touches it (`numa`). So it is enough to set its affinity before it takes memory. Not yet run on a machine with
several nodes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lullm.machine.processor import allowed_cpus, node_of_cpus, siblings


@dataclass(frozen=True, slots=True)
class Core:
    """A physical core. `cpus`: those of its hardware threads that may be used; `node`: of its memory."""

    cpus: frozenset[int]
    node: int = 0


def read_cores(cpus: Iterable[int] | None = None, root: Path = Path("/")) -> list[Core]:
    """The cores of these CPUs (None: of those that this process may use), by node and number."""
    usable = allowed_cpus() if cpus is None else frozenset(cpus)
    nodes = node_of_cpus(root)
    cores = {siblings(cpu, root) & usable for cpu in usable}
    found = [Core(cpus, nodes.get(min(cpus), 0)) for cpus in cores]
    return sorted(found, key=lambda core: (core.node, min(core.cpus)))


def cpus_of_workers(cores: Sequence[Core], num_workers: int) -> list[frozenset[int]]:
    """The CPUs of each worker, by rank; neighbours in rank are near each other.

    Workers wait for the slowest, so all have equally many cores before any has one more. No worker's cores are of two
    nodes, unless avoiding it costs a worker a core. More workers than cores share them.

    Args:
        cores: by node, at least one.
    """
    most = max(1, len(cores) // num_workers)
    nodes = [[core for core in cores if core.node == node] for node in dict.fromkeys(core.node for core in cores)]
    if len(cores) < num_workers:
        return [cores[rank * len(cores) // num_workers].cpus for rank in range(num_workers)]
    if sum(len(node) // most for node in nodes) < num_workers:
        return _cut(cores, num_workers)
    counts = [0] * len(nodes)
    for _ in range(num_workers):  # the next one goes to the node where it has the most cores
        roomy = max(range(len(nodes)), key=lambda number: len(nodes[number]) / (counts[number] + 1))
        counts[roomy] += 1
    return [cpus for node, count in zip(nodes, counts, strict=True) if count for cpus in _cut(node, count)]


def _cut(cores: Sequence[Core], count: int) -> list[frozenset[int]]:
    """Pieces of neighbours, as equal as can be."""
    starts = [len(cores) * number // count for number in range(count + 1)]
    pieces = (cores[start:end] for start, end in zip(starts, starts[1:], strict=False))
    return [frozenset().union(*(core.cpus for core in piece)) for piece in pieces]
