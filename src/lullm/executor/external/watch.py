"""Watch: the processes of a model look after each other while they wait for GPUs.

What a GPU waits for comes from another GPU, and the host learns nothing of it: with NCCL the others of a process that
dies wait for ever. So a thread of each process beats together with those of the others, over the CPUs, whatever their
GPUs do; once one is missed, or a step takes too long, the thread ends what is under way between the GPUs.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import torch

from lullm.collective.collective import Collective
from lullm.errors import WorkerLostError
from lullm.log import get_logger

logger = get_logger(__name__)

OverStep = Callable[[], contextlib.AbstractContextManager[None]]
"""Opens what is entered around waiting for other processes' GPUs."""
BEAT_S = 0.25
_LEAVE_S = 2.0


class Watch:
    """This process's end, from the construction on.

    Args:
        group: of all processes, for tensors of CPUs, and for nothing else. It is closed here.
        abort: ends what this process's GPU waits for; called from the thread.
        step_timeout_s: a step that takes longer is a process that hangs.
    """

    def __init__(self, group: Collective, abort: Callable[[], None], step_timeout_s: float):
        self._group = group
        self._abort = abort
        self._step_timeout_s = step_timeout_s
        self._deadline = math.inf
        self._loss: str | None = None
        self._is_leaving = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lullm-watch", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def over_step(self) -> Iterator[None]:
        """Around what waits for GPUs. Raises WorkerLostError, whatever has come out: the others are gone."""
        self._deadline = time.monotonic() + self._step_timeout_s
        try:
            yield
        except Exception as error:
            if self._loss is not None:
                raise WorkerLostError(self._loss) from error
            raise
        finally:
            self._deadline = math.inf
        self.check()

    def check(self) -> None:
        """Return if all are there. Raises WorkerLostError."""
        if self._loss is not None:
            raise WorkerLostError(self._loss)

    def close(self) -> None:
        """Tell the others that this one goes, and go. Idempotent."""
        self._is_leaving.set()
        self._thread.join(_LEAVE_S)
        self._group.close()

    def _run(self) -> None:
        is_together = True
        try:
            while not self._is_leaving.wait(BEAT_S):
                if time.monotonic() > self._deadline:
                    raise WorkerLostError(
                        f"a step has not ended within step_timeout={self._step_timeout_s:g} s: a GPU, or the process "
                        "of another, hangs"
                    )
                is_together = is_together and self._all_stay(True)
            if is_together:
                self._all_stay(False)
        except WorkerLostError as error:
            if not self._is_leaving.is_set():
                self._lose(str(error))

    def _all_stay(self, stays: bool) -> bool:
        """A beat of all. Raises WorkerLostError: one has died, or does not answer."""
        try:
            return bool(self._group.all_gather(torch.tensor([[stays]])).all())
        except WorkerLostError as error:
            raise WorkerLostError(f"a process that shares the model has died, or hangs: {error}") from error

    def _lose(self, reason: str) -> None:
        self._loss = reason
        logger.error("%s", reason)
        self._group.close()  # the others learn of it
        self._abort()
