"""PinnedArena: host memory that a device reads and writes directly, and that can still be released."""

import ctypes
import os
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lullm.arena.arena import Arena
from lullm.arena.backend import Backend
from lullm.arena.host import HOST
from lullm.errors import LullmError, WakeUpError
from lullm.log import get_logger
from lullm.machine.numa import place_near
from lullm.units import MIB, format_bytes

logger = get_logger(__name__)

_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python's mmap does not name it
_SLICE_BYTES = 64 * MIB
_MAX_THREADS = 8


class PinnedArena(Arena):
    """An arena of host memory that is pinned while it is mapped.

    The kernel cannot take pinned pages back, so `release` unpins them first, and `map` pins them again. Several threads
    touch the pages before they are pinned, because the driver touches them with one thread (1 to 2 GB/s).

    Args:
        device: the back end that pins. tag, capacity_bytes: see `Arena`.
        node: the memory node next to the device, whose pages it reaches without the link between two processors (up to
            a fifth faster); None: unknown.

    Raises:
        CacheSizeError, LullmError: the operating system or the driver refuses; nothing is left behind.
    """

    def __init__(self, device: Backend, tag: str, capacity_bytes: int, node: int | None = None):
        super().__init__(HOST, tag, capacity_bytes)
        self._range = _PinnedRange(device, self.base_address, self.capacity_bytes, node)
        try:
            self._range.pin()
        except LullmError as error:
            self.close()
            size = format_bytes(self.capacity_bytes)
            raise type(error)(f"no arena of {size} of pinned host memory for {tag!r}: {error}") from error
        # For an arena that is dropped without `close`: unpin before the addresses are freed, or the driver would still
        # treat them
        # as pinned. An object's finalizers run in reverse order of their creation.
        weakref.finalize(self._memory, self._range.unpin_or_log).atexit = False

    def map(self) -> None:
        super().map()
        try:
            self._range.pin()
        except LullmError as error:
            raise WakeUpError(f"the arena {self.tag!r} stays released: {error}") from error

    def map_in_parts(self) -> Iterator[int]:
        """In one part, since it is pinned as a whole."""
        self.map()
        yield self.capacity_bytes

    def release(self) -> None:
        self._range.unpin()
        super().release()

    def close(self) -> None:
        self._range.unpin_or_log()
        super().close()


class _PinnedRange:
    """A piece of host memory, and whether it is pinned."""

    def __init__(self, device: Backend, address: int, num_bytes: int, node: int | None):
        self._device = device
        self._address = address
        self._num_bytes = num_bytes
        self._node = node
        self._is_pinned = False

    def pin(self) -> None:
        """Idempotent. Raises LullmError."""
        if not self._is_pinned:
            if self._node is not None:
                place_near(self._address, self._num_bytes, self._node)
            _populate(self._address, self._num_bytes)
            self._device.pin(self._address, self._num_bytes)
            self._is_pinned = True

    def unpin(self) -> None:
        """Idempotent. Raises LullmError: the memory is still pinned."""
        if self._is_pinned:
            self._device.unpin(self._address)
            self._is_pinned = False

    def unpin_or_log(self) -> None:
        """`unpin`, for `close` and a destructor, whose caller cannot handle a refusal."""
        try:
            self.unpin()
        except LullmError as error:
            logger.error("%s of host memory stay pinned: %s", format_bytes(self._num_bytes), error)


def _populate(address: int, num_bytes: int) -> None:
    """Let the kernel provide pages for the addresses now. A kernel before 5.14 refuses; then the driver does it."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    with ThreadPoolExecutor(min(_MAX_THREADS, len(os.sched_getaffinity(0)))) as pool:
        for start in range(0, num_bytes, _SLICE_BYTES):
            pool.submit(madvise, address + start, min(_SLICE_BYTES, num_bytes - start), _MADV_POPULATE_WRITE)
