"""The device a worker runs on: what it has, in numbers. Only the CPU so far."""

import mmap
from pathlib import Path

import torch

from lullm.units import KIB

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def available_memory_bytes() -> int:
    """Host memory that can be taken without swapping, within the limit of the control group if there is one."""
    available = _meminfo("MemAvailable")
    for limit_file, usage_file in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ):
        limit, usage = _read_int(limit_file), _read_int(usage_file)
        if limit is not None and usage is not None:
            available = min(available, max(limit - usage, 0))
    return available


def resident_bytes() -> int:
    """Physical memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


def _meminfo(field: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * KIB
    raise RuntimeError(f"/proc/meminfo has no field {field}")


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file; or 'max'
        return None
