"""The host's memory in numbers from the kernel: what is available, and what this process holds."""

import contextlib
import ctypes
import mmap
import resource
from pathlib import Path

from lullm.errors import LullmError
from lullm.units import KIB, cdiv

_PAGES_AT_ONCE = 1 << 16
"""Pages per call to the kernel: a byte each, and a reserved KV cache may have millions of pages."""


def available_memory_bytes() -> int:
    """Host memory that can be taken without swapping, within the limit of the control group if there is one."""
    available = _meminfo("MemAvailable")
    for folder, limit_file, usage_file, cache_field in (
        ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
        ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        limit, usage = _read_int(f"{folder}/{limit_file}"), _read_int(f"{folder}/{usage_file}")
        if limit is not None and usage is not None:
            # The page cache counts as used, though the kernel gives it up on demand: a checkpoint just loaded.
            usage -= _field(f"{folder}/memory.stat", cache_field) or 0
            available = min(available, max(limit - usage, 0))
    return available


def address_room_bytes() -> int | None:
    """Addresses that this process may still reserve, used or not, within `ulimit -v`; None: it has no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else max(limit - _own_bytes(0), 0)


def resident_bytes() -> int:
    """Physical memory that this process holds now."""
    return _own_bytes(1)


def _own_bytes(column: int) -> int:
    """0: of all addresses. 1: of those with memory behind them."""
    return int(Path("/proc/self/statm").read_text().split()[column]) * mmap.PAGESIZE


def resident_bytes_within(address: int, num_bytes: int) -> int:
    """Physical memory behind a range of this process's anonymous memory; it starts at a page (`mincore(2)`)."""
    mincore = ctypes.CDLL(None, use_errno=True).mincore
    pages = (ctypes.c_ubyte * _PAGES_AT_ONCE)()
    num_resident = 0
    for start in range(0, num_bytes, _PAGES_AT_ONCE * mmap.PAGESIZE):
        part_bytes = min(num_bytes - start, _PAGES_AT_ONCE * mmap.PAGESIZE)
        if mincore(ctypes.c_void_p(address + start), ctypes.c_size_t(part_bytes), pages):
            raise OSError(ctypes.get_errno(), "the kernel does not say which pages are resident")
        num_resident += bytes(memoryview(pages)[: cdiv(part_bytes, mmap.PAGESIZE)]).count(1)
    return num_resident * mmap.PAGESIZE


def trim_malloc() -> None:
    """Return freed memory that malloc keeps to the system, in 2 ms. Does nothing with another C library than glibc."""
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def total_memory_bytes() -> int:
    return _meminfo("MemTotal")


def _meminfo(field: str) -> int:
    value = _field("/proc/meminfo", f"{field}:")
    if value is None:
        raise LullmError(f"/proc/meminfo has no field {field}, so nothing says how much memory there is; mount /proc")
    return value * KIB


def _field(path: str, name: str) -> int | None:
    """The number after `name` in a file of lines; None if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return None
    return next((int(words[1]) for words in map(str.split, lines) if words and words[0] == name), None)


def _read_int(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):  # no such file; or 'max'
        return None
