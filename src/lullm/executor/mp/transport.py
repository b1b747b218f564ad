"""RingTransport: worker processes of this machine, with one ring to all of them and one ring back from each."""

import contextlib
import os
import time
import weakref
from collections.abc import Sequence

from lullm.errors import WorkerLostError
from lullm.executor.mp.bell import Bell
from lullm.executor.mp.processes import WorkerProcesses
from lullm.executor.mp.ring import RingMemory, RingReader, RingWriter
from lullm.executor.remote.message import Command, Reply
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.machine.owner import check_owner

_CLOSE_S = 50e-6
"""Workers answer a call shortly after each other."""


class RingTransport:
    """Implements `Transport`. The constructor starts a process for each spec.

    A fork of the process has a copy, which sends nothing and stops no worker: the workers belong to the first process.

    Args:
        specs: by rank.
        timeout_s: a process is lost after so long without a heartbeat.

    Raises:
        OSError: a process cannot be started; all are stopped.
    """

    def __init__(self, specs: Sequence[WorkerSpec], timeout_s: float):
        self._owner = os.getpid()
        self._bell = Bell()
        self._commands = RingMemory()
        try:
            self._processes = WorkerProcesses(specs, self._commands, self._bell, timeout_s)
        except BaseException:
            self._commands.close()
            self._bell.close()
            raise
        self.loss = self._processes.loss
        workers = self._processes.all
        self._writer = RingWriter(self._commands, [each.bell for each in workers])
        self._readers = [RingReader(each.answers, 0, each.bell) for each in workers]
        self._come: list[tuple[int, Reply]] = []  # replies that were read while the writer waited for room
        self._num_answers = 0  # since the last command
        self.pids = [each.process.pid for each in workers]
        # For an engine that was not closed. At the end of the program the kernel ends its workers.
        self._close = weakref.finalize(self, _release, self._owner, self._processes, self._commands, self._bell)
        self._close.atexit = False

    @property
    def num_workers(self) -> int:
        return len(self._readers)

    def send(self, command: Command) -> None:
        self.loss.check()
        check_owner(self._owner)
        self._num_answers = 0
        self._writer.write(command.parts(), self._make_room)

    def receive(self, timeout_s: float | None) -> list[tuple[int, Reply]]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            is_lost = self.loss.is_there  # before reading: a worker that is lost may have answered before
            self._take()
            if self._come:
                found, self._come = self._come, []
                return found
            if is_lost:
                self.loss.check()
            if 0 < self._num_answers < len(self._readers) and self._is_next_close():
                continue
            if not self._bell.wait(None if deadline is None else deadline - time.monotonic()):
                return []

    def lose(self, rank: int, reason: str) -> None:
        self._processes.lose(rank, reason)

    def close(self, grace_s: float) -> None:
        if self._close.alive:
            if grace_s and os.getpid() == self._owner:
                with contextlib.suppress(WorkerLostError, _NoRoomError):
                    self.loss.check()
                    self._writer.write(Command(0, "stop").parts(), _give_up)
            self._close.detach()
            _release(self._owner, self._processes, self._commands, self._bell, grace_s)

    def _take(self) -> None:
        for rank, reader in enumerate(self._readers):
            while (message := reader.read()) is not None:
                self._come.append((rank, Reply.from_bytes(message)))
                self._num_answers += 1

    def _is_next_close(self) -> bool:
        """Poll briefly for another worker's answer: waking up again takes 50 us. Other processes may use the core."""
        end = time.perf_counter() + _CLOSE_S
        while time.perf_counter() < end:
            if any(reader.has_news for reader in self._readers):
                return True
            os.sched_yield()
        return False

    def _make_room(self, timeout_s: float) -> None:
        """Wait, and read meanwhile: a worker without room for its answers takes no commands."""
        self.loss.check()
        self._take()
        self._bell.wait(timeout_s)


def _release(owner: int, processes: WorkerProcesses, commands: RingMemory, bell: Bell, grace_s: float = 0.0) -> None:
    if os.getpid() != owner:  # the stop bell is shared: a fork that rang it would wake the watching thread forever
        return
    processes.close(grace_s)
    commands.close()
    bell.close()


class _NoRoomError(Exception):
    """The ring is still full after the wait."""


def _give_up(timeout_s: float) -> None:
    raise _NoRoomError
