"""Threads: the number of threads of a step, and their pool.

Native ops have a pool, and torch has another. A pool's threads poll for work for a while after an operation, so two
pools with a thread per core each disturb each other. Inside a `StepThreads` scope only one of them has threads;
outside, torch has the number that the surrounding program has set.
"""

import contextlib
import functools
import os
from collections.abc import Iterator

import torch

from lullm.machine.processor import default_num_threads
from lullm.ops.cpu import native
from lullm.ops.cpu.library import load_library

# A fork has no copy of OpenMP's threads, and waits for them for ever: an engine built in one hung.
os.register_at_fork(after_in_child=functools.partial(torch.set_num_threads, 1))
_PROCESS = os.getpid()


class StepThreads:
    """Scopes in which `num_threads` threads (None: see `default_num_threads`) serve the CPU ops of one engine.

    The number belongs to the thread that enters and to those that it starts. A thread that uses torch for the first
    time in its life while another one is inside may keep the scope's number.
    """

    def __init__(self, num_threads: int | None = None):
        self.num_threads = num_threads or default_num_threads()
        self._is_native = load_library() is not None

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Costs about a microsecond. Not to be nested."""
        if self._is_native:
            native.set_num_threads(self.num_threads)
        with torch_threads(1 if self._is_native else self.num_threads):
            yield


@contextlib.contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Let torch compute with `num_threads` threads for a while; in a fork always with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads if os.getpid() == _PROCESS else 1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
