"""Backend: what an arena needs from a kind of memory, as a table of five calls and a few facts.

Arenas hold addresses and sizes as plain integers; only a back end knows which driver stands behind them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lullm.units import MIB

CHUNK_BYTES = 256 * MIB
"""Physical memory on a device comes and goes in pieces of this size: few driver calls, and little to find at once."""


class CopyKind(Enum):
    """Which way a copy between an arena and host memory goes."""

    TO_HOST = "to_host"
    TO_ARENA = "to_arena"


class CopyStream(Protocol):
    """Copies that happen one after the other, beside whatever else the device does."""

    handle: int
    """The driver's own handle, for `Backend.copy`."""

    def mark(self) -> int:
        """A point after everything enqueued so far. Does not block."""

    def wait(self, mark: int) -> None:
        """Block until the stream has passed `mark`, which is used up."""

    def close(self) -> None:
        """Block until the stream is idle, then give it back. Idempotent."""


@dataclass(frozen=True)
class Backend:
    """The five calls. Each raises a LullmError that names the driver's function, its code and what to do.

    Addresses and sizes are multiples of `granularity`; a call that raises has changed nothing.
    """

    name: str
    """For people: 'host', 'CUDA', ..."""
    dlpack_device: tuple[int, int]
    """(DLDeviceType, index): the device that torch sees the memory on."""
    granularity: int
    """Bytes."""
    chunk_bytes: int | None
    """How large the pieces of an arena are, unless it is told otherwise; None: one piece."""
    faults_in: bool
    """Released memory may be touched and comes back by itself (so nobody can know that it is still released)."""

    reserve: Callable[[int], int]
    """(num_bytes) -> address. Takes addresses, no memory."""
    create_and_map: Callable[[int, int], int]
    """(address, num_bytes) -> handle. Puts physical memory behind reserved addresses."""
    unmap_and_release: Callable[[int, int, int], None]
    """(address, num_bytes, handle). Gives that memory back; the addresses stay reserved."""
    copy: Callable[[int, int, int, CopyKind, int], None]
    """(destination address, source address, num_bytes, kind, stream handle). May return before the copy is done."""
    free: Callable[[int, int], None]
    """(address, num_bytes). Gives the addresses back; nothing may be mapped there."""

    open_stream: Callable[[], CopyStream]
    """A stream for `copy`."""

    pin: Callable[[int, int], None]
    """(address, num_bytes). Fixes host memory, which the device then reads and writes by itself at the same address."""
    unpin: Callable[[int], None]
    """(address). Undoes it."""
