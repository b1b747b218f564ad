"""PinnedArena: host memory that a device reads and writes by itself, and that can sleep all the same."""

import ctypes
import os
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.arena.host import HOST
from lullm.errors import LullmError, WakeUpError
from lullm.log import get_logger
from lullm.units import MIB, format_bytes

logger = get_logger(__name__)

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap does not name it
_SLICE_BYTES = 64 * MIB
_MAX_THREADS = 8


class PinnedArena(Arena):
    """An arena of host memory that is pinned while it is mapped.

    The kernel cannot take pinned pages back, so that `release` unpins them first, and `map` pins them again. Pages are
    touched by several threads before: the driver would touch them with one, at 1 to 2 GB/s.

    Args:
        device: whose memory it is near. tag, capacity_bytes: see `Arena`.

    Raises:
        CacheSizeError, LullmError: the operating system or the driver refuses; nothing is left behind.
    """

    def __init__(self, device: Backend, tag: str, capacity_bytes: int):
        super().__init__(HOST, tag, capacity_bytes)
        self._pin = _Pin(device, self.base_address, self.capacity_bytes)
        try:
            self._pin.take()
        except LullmError:
            self.close()
            raise
        # If nobody closes the arena: before the addresses go, which the driver would know as pinned ever after. Of an
        # object's finalizers the last runs first.
        weakref.finalize(self._memory, self._pin.give_up).atexit = False

    def map(self, chunk_ids: Iterable[int] | None = None) -> None:
        super().map(chunk_ids)
        try:
            self._pin.take()
        except LullmError as error:
            raise WakeUpError(f"the arena {self.tag!r} stays released: {error}") from error

    def release(self, chunk_ids: Iterable[int] | None = None) -> None:
        self._pin.give_back()
        super().release(chunk_ids)

    def close(self) -> None:
        self._pin.give_up()
        super().close()


class _Pin:
    """Whether a piece of host memory is pinned."""

    def __init__(self, device: Backend, address: int, num_bytes: int):
        self._device = device
        self._address = address
        self._num_bytes = num_bytes
        self._is_held = False

    def take(self) -> None:
        """Idempotent. Raises LullmError."""
        if not self._is_held:
            _populate(self._address, self._num_bytes)
            self._device.pin(self._address, self._num_bytes)
            self._is_held = True

    def give_back(self) -> None:
        """Idempotent. Raises LullmError: it is still pinned."""
        if self._is_held:
            self._device.unpin(self._address)
            self._is_held = False

    def give_up(self) -> None:
        """`give_back`, where there is nobody left to refuse to."""
        try:
            self.give_back()
        except LullmError as error:
            logger.error("%s of host memory stay pinned: %s", format_bytes(self._num_bytes), error)


def _populate(address: int, num_bytes: int) -> None:
    """Have the kernel put pages behind the addresses now. An older kernel does not, and the driver will."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        for start in range(0, num_bytes, _SLICE_BYTES):
            pool.submit(madvise, address + start, min(_SLICE_BYTES, num_bytes - start), _MADV_POPULATE_WRITE)
