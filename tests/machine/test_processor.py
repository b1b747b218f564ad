"""The processor as a process may use it, read from trees that imitate the system's."""

import pytest

from lullm.machine import processor


def test_two_hardware_threads_are_one_core(write):
    for cpu, siblings in enumerate(("0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7")):
        root = write(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", siblings)
    assert processor.num_cores(frozenset(range(8)), root) == 4
    assert processor.num_cores(frozenset({0, 4, 1}), root) == 2
    assert processor.num_cores(frozenset({6}), root) == 1


def test_siblings_by_their_older_name_and_unknown_ones(write):
    root = write("sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1")
    write("sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1")
    assert processor.num_cores(frozenset({0, 1}), root) == 1
    assert processor.num_cores(frozenset({0, 1, 2, 3}), root) == 3, "2 and 3 are not described: a core each"


def test_no_groups_no_quota(tmp_path, write):
    assert processor.cpu_quota(tmp_path) is None
    root = write("proc/self/cgroup", "0::/")
    assert processor.cpu_quota(root) is None
    write("sys/fs/cgroup/cpu.max", "max 100000")
    assert processor.cpu_quota(root) is None


def test_the_smallest_quota_on_the_way_up_counts(write):
    root = write("proc/self/cgroup", "0::/a/b")
    write("sys/fs/cgroup/a/b/cpu.max", "400000 100000")
    assert processor.cpu_quota(root) == 4.0
    write("sys/fs/cgroup/a/cpu.max", "75000 50000")
    assert processor.cpu_quota(root) == 1.5
    write("sys/fs/cgroup/cpu.max", "max 100000")
    assert processor.cpu_quota(root) == 1.5


def test_a_quota_of_version_1(write):
    root = write("proc/self/cgroup", "11:memory:/x\n4:cpu,cpuacct:/docker/1\n0::/")
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1")
    write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000")
    assert processor.cpu_quota(root) is None
    write("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_quota_us", "250000")
    write("sys/fs/cgroup/cpu,cpuacct/docker/1/cpu.cfs_period_us", "100000")
    assert processor.cpu_quota(root) == 2.5


@pytest.mark.parametrize(
    ("omp", "cores", "quota", "expected"),
    [
        (None, 8, None, 8),
        (None, 8, 1.5, 2),
        (None, 8, 0.2, 1),
        (None, 4, 16.0, 4),
        ("3", 8, 2.0, 3),
        ("4,2", 8, None, 4),
        ("many", 8, None, 8),
        ("0", 8, None, 8),
    ],
)
def test_default_num_threads(monkeypatch, omp, cores, quota, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if omp is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", omp)
    monkeypatch.setattr(processor, "num_cores", lambda cpus: cores)
    monkeypatch.setattr(processor, "cpu_quota", lambda: quota)
    assert processor.default_num_threads() == expected


def test_memory_nodes(tmp_path, write):
    assert processor.numa_nodes(frozenset({0}), tmp_path) == (0,)
    for node, cpus in enumerate(("0-1,4-5", "2-3,6-7", "")):  # the last has memory only
        root = write(f"sys/devices/system/node/node{node}/cpulist", cpus)
    assert processor.numa_nodes(frozenset(range(8)), root) == (0, 1)
    assert processor.numa_nodes(frozenset({2, 7}), root) == (1,)


def test_names_from_cpuinfo(write):
    root = write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: sse avx2\n\nmodel name\t: Other")
    assert processor.model_name(root) == "Some CPU"
    assert processor.flags(root) == {"sse", "avx2"}
    assert processor.allowed_cpus()


def test_the_node_next_to_a_pci_device(write):
    root = write("sys/bus/pci/devices/0000:8a:00.0/numa_node", "1\n")
    write("sys/bus/pci/devices/0000:8b:00.0/numa_node", "-1\n")
    found = [processor.node_of_pci_device(0, bus, 0, root) for bus in (0x8A, 0x8B, 0x8C)]
    assert found == [1, None, None], "-1: a machine with one node"
