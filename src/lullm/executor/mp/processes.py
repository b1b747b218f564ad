"""WorkerProcesses: starts the processes of an engine, and watches them from a thread until all have ended.

One thread starts and watches them, because the kernel kills a child with the thread that forked it
(`PR_SET_PDEATHSIG`).
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from lullm.executor.mp.bell import Bell
from lullm.executor.mp.ring import RingMemory
from lullm.executor.remote.loss import Loss
from lullm.executor.remote.pulse import BEATS_PER_TIMEOUT, Silence
from lullm.executor.remote.records import log_record_of
from lullm.executor.remote.worker_spec import WorkerSpec

_CODE = (
    "import sys; sys.path[:] = sys.argv[7:]; from lullm.executor.mp.child import main; main(*map(int, sys.argv[1:7]))"
)
_LOG_BYTES = 1 << 17


@dataclass(slots=True)
class WorkerProcess:
    """One process, seen from the engine's."""

    rank: int
    bell: Bell
    answers: RingMemory
    lifeline: socket.socket
    process: subprocess.Popen[bytes]
    silence: Silence


class WorkerProcesses:
    """Processes by rank. The constructor blocks until they are started, not until they are ready.

    Args:
        specs: by rank.
        commands: the ring that all read.
        engine_bell: rung when one is lost.
        timeout_s: a process is lost after so long without a heartbeat.

    Attributes:
        loss: see `Loss`. All processes are killed with it.

    Raises:
        OSError: one cannot be started; all are stopped.
    """

    def __init__(self, specs: Sequence[WorkerSpec], commands: RingMemory, engine_bell: Bell, timeout_s: float):
        self._specs = specs
        self._commands = commands
        self._engine_bell = engine_bell
        self._timeout_s = timeout_s
        self.loss = Loss(self._end_all)
        self._stop = Bell()  # wakes the thread
        self._grace_s = 0.0
        self._start_error: BaseException | None = None
        self._started = threading.Event()
        self.all: list[WorkerProcess] = []
        self._thread = threading.Thread(target=self._run, name="lullm-workers", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._start_error is not None:
            self._thread.join()
            self._release()
            raise self._start_error

    def lose(self, rank: int, reason: str) -> None:
        """Record a process as lost."""
        if rank < len(self.all):  # else all have ended, as they were told to
            self.loss.declare(f"worker {rank} (process {self.all[rank].process.pid}) {reason}")

    def close(self, grace_s: float = 0.0) -> None:
        """Wait until all have ended. After `grace_s` the others are killed. Idempotent."""
        self._grace_s = grace_s
        self.loss.expect()
        self._stop.ring()
        self._thread.join()
        self._release()

    def _release(self) -> None:
        processes, self.all = self.all, []
        for each in processes:
            each.lifeline.close()
            each.bell.close()
            each.answers.close()
        if processes:
            self._stop.close()

    # -- on the thread -------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            bells = [Bell() for _ in self._specs]
            for spec, bell in zip(self._specs, bells, strict=True):
                self.all.append(_start(spec, bell, self._commands, self._engine_bell, Silence(self._timeout_s)))
        except BaseException as error:
            self._start_error = error
            self._kill()
            self._reap()
            return
        finally:
            self._started.set()
        self._watch()
        self._end()

    def _watch(self) -> None:
        """Watch until all have ended, or are to stop."""
        poll, owners = self._open_poll()
        tick_s = self._timeout_s / BEATS_PER_TIMEOUT
        while not self.loss.is_expected and owners:
            ready = poll.poll(tick_s * 1000)
            self._lose_the_silent()
            for fd, _ in ready:
                owner = owners.get(fd)
                if owner is None:
                    continue
                if fd == owner.lifeline.fileno() and _pass_log_on(owner):
                    continue
                poll.unregister(fd)
                del owners[fd]
                if fd != owner.lifeline.fileno():
                    os.close(fd)
                    self.lose(owner.rank, _words_of_end(owner.process.wait()))
        for fd, owner in owners.items():
            if fd != owner.lifeline.fileno():
                os.close(fd)

    def _open_poll(self) -> tuple[select.poll, dict[int, WorkerProcess]]:
        """The descriptors that end with a process, or carry its records: file descriptor -> process."""
        poll = select.poll()
        poll.register(self._stop.fd, select.POLLIN)
        owners = {each.lifeline.fileno(): each for each in self.all}
        owners |= {os.pidfd_open(each.process.pid): each for each in self.all}
        for fd in owners:
            poll.register(fd, select.POLLIN)
        return poll, owners

    def _lose_the_silent(self) -> None:
        for each in self.all:
            fault = each.silence.fault(each.answers.beats)
            if fault is not None and each.process.poll() is None:
                self.lose(each.rank, fault)

    def _end(self) -> None:
        """Wait for processes that were told to stop."""
        deadline = time.monotonic() + (0.0 if self.loss.is_there else self._grace_s)
        for each in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(max(deadline - time.monotonic(), 0.0))
            while _pass_log_on(each):  # its last records
                pass
        self._kill()
        self._reap()

    def _end_all(self) -> None:
        self._kill()
        self._engine_bell.ring()

    def _kill(self) -> None:
        for each in self.all:
            each.process.kill()

    def _reap(self) -> None:
        for each in self.all:
            each.process.wait()


def _start(spec: WorkerSpec, bell: Bell, commands: RingMemory, engine_bell: Bell, silence: Silence) -> WorkerProcess:
    answers = RingMemory()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    spec_fd = spec.to_memory()
    with theirs:
        descriptors = (spec_fd, theirs.fileno(), commands.fd, answers.fd, bell.fd, engine_bell.fd)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, *map(str, descriptors), *sys.path],
                stdin=subprocess.DEVNULL,
                pass_fds=[*descriptors, *spec.descriptors],
                # One progress bar on the terminal is enough: all workers do the same.
                env=os.environ | spec.environment | ({"TQDM_DISABLE": "1"} if spec.rank else {}),
                # Ctrl-C on the terminal goes to the engine's process only, which stops its workers
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            answers.close()
            raise
        finally:
            os.close(spec_fd)
    return WorkerProcess(spec.rank, bell, answers, ours, process, silence)


def _pass_log_on(worker: WorkerProcess) -> bool:
    """Log the next record of a process; False: there is none."""
    try:
        data = worker.lifeline.recv(_LOG_BYTES, socket.MSG_DONTWAIT)
    except OSError:
        return False
    if not data:
        return False
    log_record_of(worker.rank, data)
    return True


def _words_of_end(code: int) -> str:
    if code >= 0:
        return f"has ended with code {code}; its own words are on the standard error"
    name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
    hint = ", by a user or because the system was out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
