"""The processor as this process may use it: its CPUs, its cores, and its share of their time.

`root` is the root of the file system; tests pass another one.
"""

import math
import os
from pathlib import Path

from lullm.machine.control_group import group_folders, read_text

THREADS_VARIABLE = "OMP_NUM_THREADS"
"""The usual variable for a program's number of threads, as for other numerical libraries."""

_ROOT = Path("/")
_CPUS = "sys/devices/system/cpu"
_NODES = "sys/devices/system/node"


def default_num_threads() -> int:
    """OMP_NUM_THREADS if it is set; otherwise the cores in the affinity mask, or fewer if there is a CPU quota.

    Cores and not hardware threads: two threads of one core share its vector and matrix units and its path to memory,
    which bound a model's arithmetic. With AMX they run in turns.
    """
    wanted = os.environ.get(THREADS_VARIABLE, "").partition(",")[0].strip()
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    num_threads = num_cores(allowed_cpus())
    quota = cpu_quota()
    return num_threads if quota is None else max(1, min(num_threads, math.ceil(quota)))


def allowed_cpus() -> frozenset[int]:
    """The CPUs in this process's affinity mask; all CPUs where the system has no such mask."""
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def num_cores(cpus: frozenset[int], root: Path = _ROOT) -> int:
    """The number of physical cores of these CPUs (hardware threads). A CPU of unknown core counts as one core."""
    return max(1, len({siblings(cpu, root) for cpu in cpus}))


def siblings(cpu: int, root: Path = _ROOT) -> frozenset[int]:
    """The hardware threads of a CPU's core."""
    text = read_text(root / _CPUS / f"cpu{cpu}/topology/core_cpus_list")
    text = text or read_text(root / _CPUS / f"cpu{cpu}/topology/thread_siblings_list")  # before Linux 5.4
    return frozenset(_parse_list(text) if text else {cpu})


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time that the control groups of this process allow, such as 1.5; None: no limit.

    Version 2: `cpu.max`; version 1: `cpu.cfs_quota_us`.
    """
    shares = [share for folder in group_folders("cpu", root) for share in (_share_v2(folder), _share_v1(folder))]
    found = [share for share in shares if share is not None]
    return min(found) if found else None


def numa_nodes(cpus: frozenset[int], root: Path = _ROOT) -> tuple[int, ...]:
    """The memory nodes of these CPUs; (0,) if the system does not list nodes."""
    nodes = node_of_cpus(root)
    return tuple(sorted({nodes[cpu] for cpu in cpus & nodes.keys()})) or (0,)


def node_of_cpus(root: Path = _ROOT) -> dict[int, int]:
    """CPU -> its memory node; empty if the system does not list nodes. A node may have memory only."""
    return {
        cpu: int(folder.name.removeprefix("node"))
        for folder in (root / _NODES).glob("node[0-9]*")
        for cpu in _parse_list(read_text(folder / "cpulist") or "")
    }


def node_of_pci_device(domain: int, bus: int, device: int, root: Path = _ROOT) -> int | None:
    """The memory node of a PCI device; None: unknown, or the system has only one."""
    text = read_text(root / f"sys/bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.0/numa_node")
    return int(text) if text and int(text) >= 0 else None


def model_name(root: Path = _ROOT) -> str | None:
    """The processor's name, such as 'AMD EPYC 7763'; None if unknown."""
    return next((value for key, value in _cpuinfo(root) if key == "model name"), None)


def flags(root: Path = _ROOT) -> frozenset[str]:
    """The processor's features, by Linux's names ('avx2', 'avx512_bf16', 'amx_tile')."""
    return frozenset(next((value for key, value in _cpuinfo(root) if key in ("flags", "Features")), "").split())


def _share_v2(folder: Path) -> float | None:
    quota, _, period = (read_text(folder / "cpu.max") or "max").partition(" ")
    return None if quota == "max" else int(quota) / int(period or 100_000)


def _share_v1(folder: Path) -> float | None:
    quota, period = read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us")
    return None if quota is None or period is None or int(quota) <= 0 else int(quota) / int(period)


def _cpuinfo(root: Path) -> list[tuple[str, str]]:
    """(key, value) of every line, in the order of the CPUs."""
    lines = (read_text(root / "proc/cpuinfo") or "").splitlines()
    return [(key.strip(), value.strip()) for key, _, value in (line.partition(":") for line in lines)]


def _parse_list(text: str) -> set[int]:
    """`'0-2,8'` -> {0, 1, 2, 8}."""
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers
