"""MemoryAhead: host memory that a thread touches before it is needed.

A virtual machine gets a page from its host at its first touch, which stops the core for 4.8 ms per huge page. One
thread took 3.1 s for 600 pages of a small model's weights (two at once are twice as fast), and 0.14 s where the host
had backed them already. A core does this here while another imports torch.
"""

import threading

from lullm.machine import pages
from lullm.units import MIB, round_up

_STEP_BYTES = 16 * MIB
"""Touched at a time: `take` waits for one step; between steps the thread waits for the interpreter's lock (5 ms)."""


class MemoryAhead:
    """`num_bytes` of memory, touched on a thread of its own from the start. Methods: from one thread.

    Args:
        num_bytes: how much to touch.
        room_bytes: the largest piece that `take` can give; the rest is addresses only.

    Raises:
        CacheSizeError: the system refuses addresses of this size.
    """

    def __init__(self, num_bytes: int, room_bytes: int):
        self._num_bytes = round_up(num_bytes, pages.HUGE_PAGE)
        self._room_bytes = max(round_up(room_bytes, pages.HUGE_PAGE), self._num_bytes)
        self._address: int | None = _reserve_aligned(self._room_bytes)
        self._is_wanted = True
        pages.prefer_huge(self._address, self._room_bytes)
        self._thread = threading.Thread(target=self._touch, args=(self._address,), name="lullm-memory", daemon=True)
        self._thread.start()

    def take(self, num_bytes: int) -> int | None:
        """The address of `num_bytes` of it, which the caller then frees; None: it is too small, or was taken.

        Ends the touching: waits for the running step (some milliseconds; 40 where the host must find the memory).
        """
        num_bytes = round_up(num_bytes, pages.HUGE_PAGE)
        if self._address is None or num_bytes > self._room_bytes:
            return None
        self._stop()
        address, self._address = self._address, None
        if num_bytes < self._room_bytes:
            pages.free(address + num_bytes, self._room_bytes - num_bytes)
        return address

    def close(self) -> None:
        """Free memory that was not taken. Idempotent."""
        self._stop()
        if self._address is not None:
            address, self._address = self._address, None
            pages.free(address, self._room_bytes)

    def _stop(self) -> None:
        self._is_wanted = False
        self._thread.join()

    def _touch(self, address: int) -> None:
        for start in range(0, self._num_bytes, _STEP_BYTES):
            if not self._is_wanted:
                return
            pages.zero(address + start, min(_STEP_BYTES, self._num_bytes - start))


def _reserve_aligned(num_bytes: int) -> int:
    """Addresses that begin at a huge page: the kernel aligns large mappings by itself, but old ones do not."""
    address = pages.reserve(num_bytes + pages.HUGE_PAGE)
    first = round_up(address, pages.HUGE_PAGE)
    for start, end in ((address, first), (first + num_bytes, address + num_bytes + pages.HUGE_PAGE)):
        if end > start:
            pages.free(start, end - start)
    return first
