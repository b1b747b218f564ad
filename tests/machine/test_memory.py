"""What the kernel says of this process's memory and addresses."""

import resource

import pytest

from lullm.errors import LullmError
from lullm.machine import memory
from lullm.units import GIB, MIB


def test_a_limit_on_addresses_leaves_what_is_not_reserved(monkeypatch):
    limits = {resource.RLIMIT_AS: (1 << 46, resource.RLIM_INFINITY)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    room = memory.address_room_bytes()
    assert 0 < room < (1 << 46) - memory.resident_bytes()
    limits[resource.RLIMIT_AS] = (1 * MIB, 1 * GIB)  # what was reserved before may be more
    assert memory.address_room_bytes() == 0
    limits[resource.RLIMIT_AS] = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert memory.address_room_bytes() is None


def test_a_machine_without_proc_says_so(monkeypatch):
    monkeypatch.setattr(memory, "_field", lambda path, name: None)
    with pytest.raises(LullmError, match="mount /proc"):
        memory.available_memory_bytes()


def test_the_smallest_room_of_the_groups_on_the_way_up_counts(write):
    root = write("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    assert memory.available_memory_bytes(root) == 16 * GIB and memory.group_limit_bytes(root) is None
    write("proc/self/cgroup", "0::/system.slice/lullm.service\n")
    for group, limit, used in (("", "max", 9 * GIB), ("system.slice", 8 * GIB, 6 * GIB)):
        write(f"sys/fs/cgroup/{group}/memory.max", str(limit))
        write(f"sys/fs/cgroup/{group}/memory.current", str(used))
    assert memory.available_memory_bytes(root) == 2 * GIB and memory.group_limit_bytes(root) == 8 * GIB
    write("sys/fs/cgroup/system.slice/lullm.service/memory.max", str(GIB))
    write("sys/fs/cgroup/system.slice/lullm.service/memory.current", str(768 * MIB))
    write("sys/fs/cgroup/system.slice/lullm.service/memory.stat", f"file {400 * MIB}\ninactive_file {256 * MIB}\n")
    assert memory.available_memory_bytes(root) == 512 * MIB and memory.group_limit_bytes(root) == GIB


def test_what_this_process_can_have_at_most(write):
    root = write("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 1 kB\nSwapTotal: 2097152 kB\n")
    assert memory.memory_bound_bytes(root) == 10 * GIB
    write("proc/self/cgroup", "0::/job\n")
    write("sys/fs/cgroup/job/memory.max", str(GIB))
    write("sys/fs/cgroup/job/memory.current", str(2 * GIB))
    assert memory.memory_bound_bytes(root) == GIB


def test_a_limit_of_version_1(write):
    root = write("proc/meminfo", "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\n")
    write("proc/self/cgroup", "4:memory:/job_7\n0::/\n")
    for group, limit, used in (("", 9223372036854771712, 9 * GIB), ("job_7", GIB, 2 * GIB)):
        write(f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes", str(limit))
        write(f"sys/fs/cgroup/memory/{group}/memory.usage_in_bytes", str(used))
    assert memory.available_memory_bytes(root) == 0 and memory.group_limit_bytes(root) == GIB
