"""MemoryAhead: host memory that a thread touches before it is needed.

A virtual machine gets a page from its host at its first touch, which stops the core for 4.8 ms per huge page. One
thread took 3.1 s for 600 pages of a small model's weights (two at once are twice as fast), and 0.14 s where the host
had backed them already. A core does this here while another imports torch.
"""

import ctypes
import threading
from collections.abc import Callable

from lullm.machine import pages
from lullm.units import MIB, round_up

_STEP_BYTES = 16 * MIB
"""Written at a time by `touch_in_steps`: `take` waits for one of them."""

Touch = Callable[[int, int, ctypes.c_int], None]
"""(address, bytes, flag): takes memory for a range, without the interpreter's lock; ends once the flag is 0."""


def touch_in_steps(address: int, num_bytes: int, is_wanted: ctypes.c_int) -> None:
    """A `Touch` by zeros. Between two steps it waits for the interpreter's lock: 0.15 s while a library is loaded."""
    for start in range(0, num_bytes, _STEP_BYTES):
        if not is_wanted.value:
            return
        pages.zero(address + start, min(_STEP_BYTES, num_bytes - start))


class MemoryAhead:
    """`num_bytes` of memory, touched on a thread of its own from the start. Methods: from one thread.

    Args:
        num_bytes: how much to touch.
        room_bytes: the largest piece that `take` can give; the rest is addresses only.
        touch: how.

    Raises:
        CacheSizeError: the system refuses addresses of this size.
    """

    def __init__(self, num_bytes: int, room_bytes: int, touch: Touch = touch_in_steps):
        self._num_bytes = round_up(num_bytes, pages.HUGE_PAGE)
        self._room_bytes = max(round_up(room_bytes, pages.HUGE_PAGE), self._num_bytes)
        self._address: int | None = _reserve_aligned(self._room_bytes)
        self._is_wanted = ctypes.c_int(1)
        pages.prefer_huge(self._address, self._room_bytes)
        range_ = (self._address, self._num_bytes, self._is_wanted)
        self._thread = threading.Thread(target=touch, args=range_, name="lullm-memory", daemon=True)
        self._thread.start()

    def take(self, num_bytes: int) -> int | None:
        """The address of `num_bytes` of it, which the caller then frees; None: it is too small, or was taken.

        Ends the touching: waits for the page, or the step, that is being touched.
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
        self._is_wanted.value = 0
        self._thread.join()


def _reserve_aligned(num_bytes: int) -> int:
    """Addresses that begin at a huge page: the kernel aligns large mappings by itself, but old ones do not."""
    address = pages.reserve(num_bytes + pages.HUGE_PAGE)
    first = round_up(address, pages.HUGE_PAGE)
    for start, end in ((address, first), (first + num_bytes, address + num_bytes + pages.HUGE_PAGE)):
        if end > start:
            pages.free(start, end - start)
    return first
