"""Watch: the processes of a model check each other while they wait for GPUs.

A GPU waits for data of another GPU, and the host does not notice if that never comes: with NCCL the other processes
wait forever for one that died. So a thread of each process exchanges heartbeats with those of the others over the CPUs,
whatever their GPUs do. Once a heartbeat is missing, or a step takes too long, the thread aborts the GPUs'
communication.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Literal

import torch

from lullm.collective.collective import Collective
from lullm.errors import WorkerLostError
from lullm.log import get_logger

logger = get_logger(__name__)

Work = Literal["step", "call"]
Guard = Callable[[Work], contextlib.AbstractContextManager[None]]
"""A context for work that may wait for other processes' GPUs."""
BEAT_S = 0.25
GONE_S = 10.0
"""A process that has ended its engine has done its part of the others' work by then."""
_LEAVE_S = 2.0


def unguarded(work: Work) -> contextlib.AbstractContextManager[None]:
    """The guard between CPUs, whose groups notice a lost process themselves."""
    return contextlib.nullcontext()


class Watch:
    """This process's side, active from the construction on.

    Args:
        group: of all processes, for tensors of CPUs, for this purpose only. It is closed here.
        abort: aborts work that this process's GPU waits for; called from the thread.
        step_timeout_s: a process whose step takes longer is considered to hang.
    """

    def __init__(self, group: Collective, abort: Callable[[], None], step_timeout_s: float):
        self._group = group
        self._abort = abort
        self._step_timeout_s = step_timeout_s
        self._since = math.inf  # when the running work began
        self._limit_s = math.inf
        self._loss: str | None = None
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lullm-watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def over(self, work: Work) -> Iterator[None]:
        """A `Guard`. Raises WorkerLostError, even after finished work: others are lost. A call may take any time."""
        self._limit_s = self._step_timeout_s if work == "step" else math.inf
        self._since = time.monotonic()
        try:
            yield
        except Exception as error:
            if self._loss is not None:
                raise WorkerLostError(self._loss) from error
            raise
        finally:
            self._since = math.inf
        self.check()

    def check(self) -> None:
        """Check that all processes live. Raises WorkerLostError."""
        if self._loss is not None:
            raise WorkerLostError(self._loss)

    def close(self) -> None:
        """Tell the others that this process leaves. Idempotent."""
        self._is_leaving.set()
        self._thread.join(_LEAVE_S)
        self._group.close()

    def _run(self) -> None:
        is_together = True
        try:
            while not self._is_leaving.wait(BEAT_S):
                self._check_time(is_together)
                is_together = is_together and self._all_stay(True)
            if is_together:
                self._all_stay(False)
        except WorkerLostError as error:
            if not self._is_leaving.is_set():
                self._lose(str(error))

    def _check_time(self, is_together: bool) -> None:
        """Raises WorkerLostError: the running work will not end."""
        passed_s = time.monotonic() - self._since
        if passed_s > self._limit_s:
            raise WorkerLostError(
                f"a step has not ended within step_timeout={self._step_timeout_s:g} s: a GPU, or the process of "
                "another, hangs"
            )
        if passed_s > GONE_S and not is_together:
            raise WorkerLostError("a process that shares the model has ended its engine, and this one waits for it")

    def _all_stay(self, stays: bool) -> bool:
        """Exchange one heartbeat. Raises WorkerLostError: a process has died, or does not answer."""
        try:
            return bool(self._group.all_gather(torch.tensor([[stays]])).all())
        except WorkerLostError as error:
            raise WorkerLostError(f"a process that shares the model has died, or hangs: {error}") from error

    def _lose(self, reason: str) -> None:
        self._loss = reason
        logger.error("%s", reason)
        self._group.close()  # the others learn of it
        self._abort()
