"""Bell: wakes one process that waits for others (`eventfd(2)`). Each process has one bell for all that it waits for."""

import contextlib
import os
import select

_CLOSED = contextlib.suppress(OSError)
"""The reader is gone. Made once: it has no state, and takes 0.3 us to make."""


class Bell:
    """Any process that has it may ring it; one process waits. Rings add up: a ring before `wait` is not lost."""

    def __init__(self, fd: int | None = None):
        self.fd = os.eventfd(0) if fd is None else fd
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def ring(self) -> None:
        """From any thread and process; about a microsecond."""
        with _CLOSED:
            os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return once it was rung since the last time. False: not within `timeout_s`."""
        if timeout_s is not None and not self._poll.poll(max(timeout_s, 0.0) * 1000):
            return False
        os.eventfd_read(self.fd)
        return True

    def close(self) -> None:
        os.close(self.fd)
