"""Restarts: replaces lost workers by new ones; requests go on from their tokens."""

import time
from collections import deque
from collections.abc import Callable

from lullm.engine.lifecycle import Lifecycle
from lullm.engine.lora.adapters import Adapters
from lullm.errors import WorkerLostError
from lullm.executor.executor import Executor
from lullm.log import get_logger

logger = get_logger(__name__)

WINDOW_S = 3600.0
"""The period in which restarts are counted: repeated losses have a cause that no restart removes."""


class Restarts:
    """The restarts of one engine. New workers read the weights again, and compute the blocks of all requests again.

    Args:
        limit: most restarts within `WINDOW_S`.
    """

    def __init__(
        self,
        limit: int,
        executor: Executor,
        lifecycle: Lifecycle,
        adapters: Adapters,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._limit = limit
        self._executor = executor
        self._lifecycle = lifecycle
        self._adapters = adapters
        self._clock = clock
        self._times: deque[float] = deque()

    def restart(self, loss: WorkerLostError) -> None:
        """Start all workers again; no step is in flight. Blocks until they have loaded their model.

        Raises:
            WorkerLostError: restarts are not allowed, or it failed; the engine ends.
        """
        now = self._clock()
        while self._times and now - self._times[0] > WINDOW_S:
            self._times.popleft()
        obstacle = self._obstacle()
        if obstacle is not None:
            raise WorkerLostError(f"{loss}; {obstacle}") from loss
        self._times.append(now)
        logger.warning("%s; starting the workers again, %d of %d times", loss, len(self._times), self._limit)
        try:
            self._executor.restart()
        except Exception as error:
            raise WorkerLostError(f"{loss}; they cannot be started again: {error}") from error
        self._lifecycle.forget_kv()
        self._adapters.forget_workers()
        logger.info("the workers are there again after %.1f s; their requests are computed on", self._clock() - now)

    def _obstacle(self) -> str | None:
        """The reason against a restart, or None."""
        if not self._limit:
            return "build a new engine, or have it start its workers again (restart_workers)"
        if len(self._times) >= self._limit:
            return (
                f"its workers were started again restart_workers={self._limit} times within an hour; build a new engine"
            )
        if self._lifecycle.sleeping_tags:
            return "what slept in it is gone; build a new engine"
        if self._executor.weights_version:
            return (
                "its weights were changed since they were loaded, and new workers would not have them; build a new one"
            )
        return None
