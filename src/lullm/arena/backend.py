"""Backend: a kind of memory for arenas, as a table of eight calls and a few facts.

Five calls handle memory: reserve, create and map, unmap and release, copy, free. Three serve copies: open_stream, pin,
unpin. All take and give plain integers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lullm.units import MIB

CHUNK_BYTES = 256 * MIB
"""A device maps memory in pieces of this size: few driver calls, and no need for a large free block."""


class CopyKind(Enum):
    """The direction of a copy between an arena and host memory."""

    TO_HOST = "to_host"
    TO_ARENA = "to_arena"


class CopyStream(Protocol):
    """Copies in order, beside all other work of the device."""

    handle: int
    """The driver's own handle, for `Backend.copy`."""

    def mark(self) -> int:
        """A point after all copies enqueued so far. Does not block."""

    def wait(self, mark: int) -> None:
        """Block until the stream has passed `mark`. A mark can be waited for once."""

    def close(self) -> None:
        """Block until the stream is idle, then free it. Idempotent."""


@dataclass(frozen=True)
class Backend:
    """The eight calls. Each raises a LullmError that names the driver's function, its code and what to do.

    Addresses and sizes are multiples of `granularity`. A call that raises has changed nothing.
    """

    name: str
    """For messages: 'host', 'CUDA', ..."""
    dlpack_device: tuple[int, int]
    """(DLDeviceType, index): the device that torch sees the memory on."""
    granularity: int
    """Bytes."""
    chunk_bytes: int | None
    """Default size of an arena's pieces; None: one piece."""
    faults_in: bool
    """A touch brings released memory back, so a released state is not certain."""

    reserve: Callable[[int], int]
    """(num_bytes) -> address. Reserves addresses without memory."""
    create_and_map: Callable[[int, int], int]
    """(address, num_bytes) -> handle. Puts physical memory behind reserved addresses."""
    unmap_and_release: Callable[[int, int, int], None]
    """(address, num_bytes, handle). Frees that memory; the addresses stay reserved."""
    copy: Callable[[int, int, int, CopyKind, int], None]
    """(destination address, source address, num_bytes, kind, stream handle). May return before the copy is done."""
    free: Callable[[int, int], None]
    """(address, num_bytes). Frees the addresses. On a device nothing may be mapped there."""

    open_stream: Callable[[], CopyStream]
    """A stream for `copy`."""

    pin: Callable[[int, int], None]
    """(address, num_bytes). Fixes pages of host memory, so that the device can read and write them at their address."""
    unpin: Callable[[int], None]
    """(address). Undoes `pin`."""
