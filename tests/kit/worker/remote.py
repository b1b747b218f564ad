"""A worker for a process of its own that computes nothing, and loads no torch: what may go wrong is asked of it."""

import logging
import os
import signal
import threading
import time

from lullm.errors import CacheSizeError, ModelLoadError
from lullm.types.step import DrawnToken, StepResult

FAKE = "kit.worker.remote:open_fake"

logger = logging.getLogger("lullm.worker.fake")


def open_fake(rank, how="well"):
    """`how` it starts: 'well', 'badly' (an error), 'dead' (the process ends), 'never'."""
    logger.warning("opening %s", how)
    if how == "badly":
        raise ModelLoadError(f"rank {rank} cannot read its share")
    if how == "dead":
        os._exit(7)
    if how == "never":
        time.sleep(600)
    return RemoteFake(rank)


class RemoteFake:
    is_accelerator = False

    def __init__(self, rank):
        self.rank = rank
        self.version = 0
        self.num_steps = 0

    def launch_model(self, plan):
        self.num_steps += 1
        return FakeStep(self, plan)

    def settle(self):
        """It has no weights."""

    def weights_version(self):
        return self.version

    def shutdown(self):
        pass

    def num_available_blocks(self):
        return 100 - self.rank, self.rank

    def reload_weights(self):
        self.version += 1

    def prepare_sleep(self, command):
        raise CacheSizeError(f"rank {self.rank}: {command.level} {command.actions!r} {command.used.device}")

    def write_weight(self, name, tensor):
        self.written = (name, tensor)

    def pid(self):
        return os.getpid()

    def echo(self, *args, **kwargs):
        return [self.rank, args, kwargs]

    def live(self):
        return threading.Lock()

    def wait(self, seconds):
        time.sleep(seconds)
        return self.rank

    def take_memory(self):
        raise MemoryError("no memory left")

    def disk_is_full(self):
        raise OSError(28, "No space left on device")


def rank_of(worker, *args, **kwargs):
    """Called by its name."""
    return [worker.rank, *args, kwargs]


class FakeStep:
    """For every copy (rank, way) in its plan, the worker of this rank does what WAYS says."""

    def __init__(self, worker, plan):
        self.worker = worker
        self.plan = plan

    def result(self):
        for rank, way in self.plan.blocks_to_copy:
            if rank == self.worker.rank:
                WAYS[way]()
        return StepResult([DrawnToken(self.worker.num_steps, self.worker.rank)], swap_s=float(self.worker.rank))


def fail():
    raise MemoryError("no memory left")


WAYS = {
    1: fail,
    2: lambda: os.kill(os.getpid(), signal.SIGKILL),
    3: lambda: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(600)),  # its thread may run on for a moment
    4: lambda: time.sleep(600),
    5: lambda: time.sleep(0.3),
}
FAILS, DIES, STOPS, HANGS, TAKES_LONG = WAYS
