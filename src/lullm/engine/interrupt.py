"""Ctrl-C between steps. Within a step it would leave the step half done and the engine unusable."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C within the block sets the event, and raises KeyboardInterrupt after the block; a second one raises at
    once.

    Does nothing where Ctrl-C raises nothing: outside the main thread, or under another handler of SIGINT, such as an
    outer block of this kind.
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
