"""Which cores each of several workers gets, on machines of any shape."""

import os

import pytest

from lullm.machine.cores import Core, cpus_of_workers, read_cores


def machine(*cores_of_nodes, threads=1):
    """Cores numbered through; the second hardware threads come after all first ones, as on most machines."""
    total, cores = sum(cores_of_nodes), []
    for node, count in enumerate(cores_of_nodes):
        for _ in range(count):
            number = len(cores)
            cores.append(Core(frozenset(number + total * thread for thread in range(threads)), node))
    return cores


def shares(cores, num_workers):
    return [sorted(cpus) for cpus in cpus_of_workers(cores, num_workers)]


def test_cores_are_cut_into_neighbours():
    assert shares(machine(2), 2) == [[0], [1]]
    assert shares(machine(8), 3) == [[0, 1], [2, 3, 4], [5, 6, 7]]
    assert shares(machine(4, threads=2), 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_one_worker_has_them_all():
    assert shares(machine(2, 2), 1) == [[0, 1, 2, 3]]


def test_nobody_is_split_over_nodes():
    assert shares(machine(4, 4), 2) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert shares(machine(4, 4), 3) == [[0, 1], [2, 3], [4, 5, 6, 7]], "and all have two at least"
    assert shares(machine(6, 2), 4) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert shares(machine(3, 3, 3, 3), 4) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_nobody_has_fewer_cores_for_that():
    assert shares(machine(3, 3), 4) == [[0], [1, 2], [3], [4, 5]]
    assert shares(machine(5, 3), 2) == [[0, 1, 2, 3], [4, 5, 6, 7]], "3 for one of them would hold up both"


def test_more_workers_than_cores_take_turns():
    assert shares(machine(2), 4) == [[0], [0], [1], [1]]
    assert shares(machine(1), 3) == [[0]] * 3


@pytest.mark.parametrize("num_workers", range(1, 20))
@pytest.mark.parametrize("nodes", [(1,), (7,), (8, 8), (1, 9), (5, 3, 6), (2, 2, 2, 2)], ids=str)
def test_every_machine(nodes, num_workers):
    cores = machine(*nodes)
    found = cpus_of_workers(cores, num_workers)
    assert len(found) == num_workers and all(found)
    least = min(map(len, found))
    assert least == max(1, len(cores) // num_workers)
    if num_workers <= len(cores):
        assert sum(map(len, found)) == len(frozenset().union(*found)), "no core has two workers"


def test_cores_are_read(tmp_path):
    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    for cpu in range(8):
        write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}\n")
    write("sys/devices/system/node/node0/cpulist", "2-3,6-7\n")
    write("sys/devices/system/node/node1/cpulist", "0-1,4-5\n")
    write("sys/devices/system/node/node2/cpulist", "\n")
    found = read_cores({0, 1, 2, 3, 4, 6}, tmp_path)
    assert [(sorted(core.cpus), core.node) for core in found] == [([2, 6], 0), ([3], 0), ([0, 4], 1), ([1], 1)]


def test_the_cores_of_this_machine():
    assert frozenset().union(*(core.cpus for core in read_cores())) == os.sched_getaffinity(0)
