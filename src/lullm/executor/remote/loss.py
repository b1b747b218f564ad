"""Loss: whether a worker of an engine is lost. The first report counts, and all workers are ended with it."""

import threading
from collections.abc import Callable

from lullm.errors import WorkerLostError
from lullm.log import get_logger

logger = get_logger(__name__)


class Loss:
    """The loss of a worker. Any thread may call any method.

    Args:
        end: ends all workers, since each waits for the others in every layer, and wakes threads that wait for them.
    """

    def __init__(self, end: Callable[[], None]):
        self._end = end
        self._error: WorkerLostError | None = None
        self._is_expected = False
        self._observers: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def is_there(self) -> bool:
        return self._error is not None

    @property
    def is_expected(self) -> bool:
        """Whether workers end because they were told to."""
        return self._is_expected

    def check(self) -> None:
        """Check that none is lost. Raises WorkerLostError."""
        if self._error is not None:
            raise WorkerLostError(str(self._error))

    def expect(self) -> None:
        """From now on workers end because they were told to."""
        with self._lock:
            self._is_expected = True

    def declare(self, reason: str) -> None:
        with self._lock:
            if self._error is not None or self._is_expected:
                return
            self._error = WorkerLostError(reason)
            observers, self._observers = self._observers, []
        logger.error("%s", self._error)
        self._end()
        for observer in observers:
            observer()

    def observe(self, observer: Callable[[], None]) -> None:
        """Call `observer` once, when a worker is lost; at once if one is lost already."""
        with self._lock:
            if self._error is None:
                self._observers.append(observer)
                return
        observer()
