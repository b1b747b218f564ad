"""Pages over several memory nodes. There is one in most machines: the calls are real, several nodes are not."""

import mmap
from pathlib import Path

import pytest
import torch

from lullm.arena.host import HostArena
from lullm.machine import numa

MAPS = Path("/proc/self/numa_maps")
SIZE = 4 << 20


@pytest.mark.skipif(not MAPS.exists(), reason="this kernel knows no memory nodes")
def test_the_kernel_is_told_and_pages_come():
    memory = mmap.mmap(-1, SIZE)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    assert not numa.has_policy()
    assert numa.interleave(address, SIZE, {0})
    memory[:] = b"\1" * SIZE
    (line,) = (line for line in MAPS.read_text().splitlines() if line.split()[1] == "interleave:0")
    assert int(line.split()[0], 16) <= address < int(line.split()[0], 16) + 2 * SIZE


@pytest.mark.skipif(not MAPS.exists(), reason="this kernel knows no memory nodes")
def test_a_node_that_is_not_there_is_refused():
    memory = mmap.mmap(-1, SIZE)
    address = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    assert not numa.interleave(address, SIZE, {900})
    memory[:] = b"\1" * SIZE  # and the memory serves


@pytest.mark.parametrize(
    ("nodes", "policy", "expected"),
    [((0,), False, []), ((0, 1), True, []), ((0, 1), False, [(0, 1)])],
    ids=["one node", "somebody's policy", "two nodes"],
)
def test_when_pages_are_spread(monkeypatch, nodes, policy, expected):
    calls = []
    monkeypatch.setattr(numa, "numa_nodes", lambda cpus: nodes)
    monkeypatch.setattr(numa, "has_policy", lambda: policy)
    monkeypatch.setattr(numa, "interleave", lambda address, num_bytes, found: calls.append(found))
    arena = HostArena("weights", SIZE)
    assert calls == expected
    arena.release()
    arena.map()
    assert calls == 2 * expected, "and once more after a sleep"
    arena.close()
