"""The host back end: anonymous private memory (`mmap`), which `madvise` releases page by page.

A page takes physical memory when it is first touched. So an arena that is never written costs addresses only, and after
a release the next touch brings memory back without a call.
"""

import ctypes
from dataclasses import replace

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend, CopyKind
from lullm.machine import pages
from lullm.machine.memory_ahead import MemoryAhead

_DLPACK_CPU = 1


def _create_and_map(address: int, num_bytes: int) -> int:
    pages.prefer_huge(address, num_bytes)
    return 0


def _unmap_and_release(address: int, num_bytes: int, handle: int) -> None:
    pages.release(address, num_bytes)


def _copy(destination: int, source: int, num_bytes: int, kind: CopyKind, stream: int) -> None:
    ctypes.memmove(destination, source, num_bytes)


class _Immediate:
    """The stream of synchronous copies: waiting for them is not necessary."""

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
    granularity=pages.HUGE_PAGE,
    chunk_bytes=None,
    faults_in=True,
    reserve=pages.reserve,
    create_and_map=_create_and_map,
    unmap_and_release=_unmap_and_release,
    copy=_copy,
    free=pages.free,
    open_stream=_Immediate,
    pin=lambda address, num_bytes: None,
    unpin=lambda address: None,
)
"""The table for host memory."""


class HostArena(Arena):
    """An arena of host memory. The kernel provides memory at the first touch, so free memory is not checked.

    Args:
        ahead: memory that was touched ahead; the arena lies there if it fits.

    Raises:
        CacheSizeError: the operating system refuses a mapping of this size.
    """

    def __init__(self, tag: str, capacity_bytes: int, ahead: MemoryAhead | None = None):
        backend = HOST if ahead is None else replace(HOST, reserve=lambda n: ahead.take(n) or pages.reserve(n))
        super().__init__(backend, tag, capacity_bytes)
