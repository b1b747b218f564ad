"""The host back end: anonymous private memory (`mmap`), which `madvise` gives back page by page.

A page takes physical memory when it is first touched. So an arena that is never written costs addresses only, and after
a release the next touch brings memory back without a call.
"""

import ctypes
import errno
import mmap
import os

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend, CopyKind
from lullm.errors import CacheSizeError, LullmError
from lullm.machine.numa import spread
from lullm.units import MIB, format_bytes

_HUGE_PAGE = 2 * MIB
_DLPACK_CPU = 1
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.argtypes = (
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64,
)  # fmt: skip
_libc.mmap.restype = ctypes.c_void_p
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _reserve(num_bytes: int) -> int:
    protection, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address = _libc.mmap(None, num_bytes, protection, flags, -1, 0)
    if address == _MAP_FAILED:
        code = ctypes.get_errno()
        advice = "; ask for less, or raise the limit on address space" if code == errno.ENOMEM else ""
        raise CacheSizeError(f"mmap of {format_bytes(num_bytes)} failed with {_named(code)}{advice}")
    return address


def _create_and_map(address: int, num_bytes: int) -> int:
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _libc.madvise(address, num_bytes, mmap.MADV_HUGEPAGE)  # advice: the kernel may use small pages all the same
    spread(address, num_bytes)
    return 0


def _unmap_and_release(address: int, num_bytes: int, handle: int) -> None:
    if _libc.madvise(address, num_bytes, mmap.MADV_DONTNEED):
        raise LullmError(
            f"madvise(MADV_DONTNEED) of {format_bytes(num_bytes)} failed with {_named(ctypes.get_errno())}; is the "
            "memory locked (mlock)?"
        )


def _copy(destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
    ctypes.memmove(destination, source, num_bytes)


def _free(address: int, num_bytes: int) -> None:
    if _libc.munmap(address, num_bytes):
        raise LullmError(f"munmap of {format_bytes(num_bytes)} failed with {_named(ctypes.get_errno())}")


def _named(code: int) -> str:
    return f"{errno.errorcode.get(code, code)} ({os.strerror(code)})"


class _Immediate:
    """The stream of synchronous copies: there is never anything to wait for."""

    handle = 0

    def mark(self) -> int:
        return 0

    def wait(self, mark: int) -> None:
        pass

    def close(self) -> None:
        pass


HOST = Backend(
    name="host",
    dlpack_device=(_DLPACK_CPU, 0),
    granularity=_HUGE_PAGE,
    chunk_bytes=None,
    faults_in=True,
    reserve=_reserve,
    create_and_map=_create_and_map,
    unmap_and_release=_unmap_and_release,
    copy=_copy,
    free=_free,
    open_stream=_Immediate,
    pin=lambda address, num_bytes: None,
    unpin=lambda address: None,
)
"""The table for host memory."""


class HostArena(Arena):
    """An arena of host memory. The kernel takes memory at the first touch, so it is not checked what is available.

    Raises:
        CacheSizeError: the operating system refuses a mapping of this size.
    """

    def __init__(self, tag: str, capacity_bytes: int):
        super().__init__(HOST, tag, capacity_bytes)
