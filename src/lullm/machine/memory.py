"""The host's memory in numbers from the kernel: what is available, and what this process holds.

`root` is the root of the file system; tests pass another one.
"""

import contextlib
import ctypes
import mmap
import resource
from collections.abc import Iterator
from pathlib import Path

from lullm.errors import LullmError
from lullm.machine.control_group import group_folders, read_text
from lullm.units import KIB, cdiv

_ROOT = Path("/")
_NO_ROOM_WORDS = ("can't allocate memory", "out of memory", "can't start new thread")
"""Words in a RuntimeError of torch's allocators or of `Thread.start`. Errors of a device are RuntimeErrors, too."""
_PAGES_AT_ONCE = 1 << 16
"""Pages per call to the kernel: a byte each, and a reserved KV cache may have millions of pages."""


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Host memory that can be taken without swapping, within the limits of the control groups if there are any."""
    rooms = [max(limit - used, 0) for limit, used in _group_limits(root)]
    return min([_meminfo("MemAvailable", root), *rooms])


def group_limit_bytes(root: Path = _ROOT) -> int | None:
    """The memory that the control groups allow this process and its neighbours in them; None: all of it."""
    return min((limit for limit, _ in _group_limits(root) if limit < total_memory_bytes(root)), default=None)


def memory_bound_bytes(root: Path = _ROOT) -> int:
    """What this process can have if nothing else takes any: the machine's and its swap, within the groups' limits."""
    bound = _meminfo("MemTotal", root) + (_field(root / "proc/meminfo", "SwapTotal:") or 0) * KIB
    return min([bound, *(limit for limit, _ in _group_limits(root))])


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that the kernel does not give up) of each control group that has a limit."""
    for folder in group_folders("memory", root):
        for limit_file, usage_file, cache_field in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = _read_int(folder / limit_file), _read_int(folder / usage_file)
            if limit is not None and usage is not None:
                # The page cache counts as used, though the kernel gives it up on demand: a checkpoint just loaded.
                yield limit, usage - (_field(folder / "memory.stat", cache_field) or 0)


def is_no_room(error: BaseException) -> bool:
    """Whether an error says that memory, or a thread with its stack, is lacking."""
    is_told = isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_ROOM_WORDS)
    return isinstance(error, MemoryError) or is_told


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


def total_memory_bytes(root: Path = _ROOT) -> int:
    return _meminfo("MemTotal", root)


def _meminfo(field: str, root: Path) -> int:
    value = _field(root / "proc/meminfo", f"{field}:")
    if value is None:
        raise LullmError(f"/proc/meminfo has no field {field}, so nothing says how much memory there is; mount /proc")
    return value * KIB


def _field(path: Path, name: str) -> int | None:
    """The number after `name` in a file of lines; None if there is none."""
    lines = (read_text(path) or "").splitlines()
    return next((int(words[1]) for words in map(str.split, lines) if words and words[0] == name), None)


def _read_int(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text and text.isdecimal() else None  # no such file; or 'max'
