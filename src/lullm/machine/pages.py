"""Pages of host memory: anonymous private memory (`mmap(2)`), which `madvise(2)` releases page by page.

A page takes physical memory when it is first touched. So addresses that are never written cost nothing, and after a
release the next touch brings memory back without a call.
"""

import ctypes
import errno
import mmap
import os

from lullm.errors import CacheSizeError, LullmError
from lullm.machine.numa import spread
from lullm.units import MIB, format_bytes

HUGE_PAGE = 2 * MIB
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def reserve(num_bytes: int) -> int:
    """The address of `num_bytes` fresh bytes, without memory yet. Raises CacheSizeError: the system refuses them."""
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = _libc.mmap(None, num_bytes, protection, flags, -1, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        advice = "; ask for less, or raise the limit on address space" if code == errno.ENOMEM else ""
        raise CacheSizeError(f"mmap of {format_bytes(num_bytes)} failed with {_named(code)}{advice}")
    return address


def prefer_huge(address: int, num_bytes: int) -> None:
    """Advise the kernel to use huge pages, and pages of all memory nodes; it may not follow."""
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc.madvise(address, num_bytes, mmap.MADV_HUGEPAGE)
    spread(address, num_bytes)


def zero(address: int, num_bytes: int) -> None:
    """Write zeros, so that the range has memory. Blocks without the interpreter's lock.

    A write meets one page's lock at a time. MADV_POPULATE_WRITE holds the lock of all mappings, for which the loading
    of every library waits: `import torch` took 2.9 s beside it, and 0.9 s beside this.
    """
    ctypes.memset(address, 0, num_bytes)


def populate(address: int, num_bytes: int) -> bool:
    """Touch whole pages, keeping their contents; False: the system cannot (Linux before 5.14), or has no memory."""
    return not _libc.madvise(address, num_bytes, _MADV_POPULATE_WRITE)


def release(address: int, num_bytes: int) -> None:
    """Release the memory of a range; the addresses stay, and read as zeros. Raises LullmError."""
    if _libc.madvise(address, num_bytes, mmap.MADV_DONTNEED):
        raise LullmError(
            f"madvise(MADV_DONTNEED) of {format_bytes(num_bytes)} failed with {_named(ctypes.get_errno())}; is the "
            "memory locked (mlock)?"
        )


def free(address: int, num_bytes: int) -> None:
    """Free the addresses and their memory. Raises LullmError."""
    if _libc.munmap(address, num_bytes):
        raise LullmError(f"munmap of {format_bytes(num_bytes)} failed with {_named(ctypes.get_errno())}")


def _named(code: int) -> str:
    return f"{errno.errorcode.get(code, code)} ({os.strerror(code)})"
