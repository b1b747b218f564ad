"""Ctrl-C between steps instead of in one, which would leave half of it done and the engine of no use."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C sets the event, and is a KeyboardInterrupt when the block has ended; a second one interrupts at once.

    Does nothing where Ctrl-C raises nothing: beside the main thread, under another handler of SIGINT (as in an outer
    block of this kind).
    """
    came = threading.Event()
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield came
        return

    def note(number: int, frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came.is_set():
        raise KeyboardInterrupt
