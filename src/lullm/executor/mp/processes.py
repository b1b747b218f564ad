"""WorkerProcesses: starts the processes of an engine, and watches them from a thread until all have ended.

The same thread starts and watches them: the kernel kills a child with the thread that forked it (`PR_SET_PDEATHSIG`).
"""

import contextlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec

from lullm.errors import WorkerLostError
from lullm.executor.mp.bell import Bell
from lullm.executor.mp.order import Descriptors, WorkerOrder
from lullm.executor.mp.ring import RingMemory
from lullm.executor.remote.pulse import BEATS_PER_TIMEOUT, Silence
from lullm.log import get_logger

logger = get_logger(__name__)

_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); \
from lullm.executor.mp.child import main; main(sys.argv[1])"
_LOG_BYTES = 1 << 17


@dataclass(slots=True)
class WorkerProcess:
    """One process, as its engine sees it."""

    rank: int
    order: WorkerOrder
    bell: Bell
    answers: RingMemory
    lifeline: socket.socket
    process: subprocess.Popen[bytes]
    silence: Silence

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


class WorkerProcesses:
    """Processes by rank, from the construction on, which blocks until they are started, not until they are ready.

    Args:
        orders: by rank. commands: the ring that all read. engine_bell: rung when one is lost.
        timeout_s: a process without a sign of life for so long is lost.

    Raises:
        OSError: one cannot be started; none is left.
    """

    def __init__(self, orders: Sequence[WorkerOrder], commands: RingMemory, engine_bell: Bell, timeout_s: float):
        self._orders = orders
        self._commands = commands
        self._engine_bell = engine_bell
        self._timeout_s = timeout_s
        self._loss: WorkerLostError | None = None
        self._observers: list[Callable[[], None]] = []
        self._lock = threading.Lock()  # of the loss and its observers
        self._stop = Bell()  # wakes the thread
        self._is_stopping = False
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

    @property
    def is_lost(self) -> bool:
        """Whether one is lost, and all are killed."""
        return self._loss is not None

    def check(self) -> None:
        """Return if none is lost. Raises WorkerLostError."""
        if self._loss is not None:
            raise WorkerLostError(str(self._loss))

    def lose(self, rank: int, reason: str) -> None:
        """Count a process as lost, and kill all. The first call has the word."""
        with self._lock:
            if self._loss is not None or self._is_stopping:
                return
            process = self.all[rank].process
            self._loss = WorkerLostError(f"worker {rank} (process {process.pid}) {reason}")
            observers, self._observers = self._observers, []
        logger.error("%s", self._loss)
        self._kill()
        self._engine_bell.ring()
        for observer in observers:
            observer()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        """Have it called once, when a process is lost; at once if one is already."""
        with self._lock:
            if self._loss is None:
                self._observers.append(observer)
                return
        observer()

    def close(self, grace_s: float = 0.0) -> None:
        """Wait until all have ended: those that do not by themselves within `grace_s` are killed. Idempotent."""
        with self._lock:
            self._is_stopping = True
            self._grace_s = grace_s
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
            bells = [Bell() for _ in self._orders]
            for order, bell in zip(self._orders, bells, strict=True):
                self.all.append(_start(order, bell, self._commands, self._engine_bell, Silence(self._timeout_s)))
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
        """Until all have ended, or are to stop."""
        poll, owners = self._open_poll()
        tick_s = self._timeout_s / BEATS_PER_TIMEOUT
        while not self._is_stopping and owners:
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
        """What ends with a process, or comes from it: file descriptor -> process."""
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
            if fault is not None and not each.has_ended:
                self.lose(each.rank, fault)

    def _end(self) -> None:
        """Wait for processes that were told to stop."""
        deadline = time.monotonic() + (self._grace_s if self._loss is None else 0.0)
        for each in self.all:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.process.wait(max(deadline - time.monotonic(), 0.0))
            while _pass_log_on(each):  # its last words
                pass
        self._kill()
        self._reap()

    def _kill(self) -> None:
        for each in self.all:
            each.process.kill()

    def _reap(self) -> None:
        for each in self.all:
            each.process.wait()


def _start(order: WorkerOrder, bell: Bell, commands: RingMemory, engine_bell: Bell, silence: Silence) -> WorkerProcess:
    answers = RingMemory()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    order_fd = order.to_memory()
    with theirs:
        descriptors = Descriptors(order_fd, theirs.fileno(), commands.fd, answers.fd, bell.fd, engine_bell.fd)
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE, descriptors.text(), json.dumps(sys.path)],
                stdin=subprocess.DEVNULL,
                pass_fds=[*asdict(descriptors).values(), *order.descriptors],
                # One bar of progress on the terminal is enough, of what all do alike.
                env=os.environ | order.environment | ({"TQDM_DISABLE": "1"} if order.rank else {}),
                start_new_session=True,  # Ctrl-C on the terminal is for the engine's process, which stops its workers
            )
        except BaseException:
            ours.close()
            answers.close()
            raise
        finally:
            os.close(order_fd)
    return WorkerProcess(order.rank, order, bell, answers, ours, process, silence)


def _pass_log_on(worker: WorkerProcess) -> bool:
    """Log the next record of a process; False: there is none."""
    try:
        data = worker.lifeline.recv(_LOG_BYTES, socket.MSG_DONTWAIT)
    except OSError:
        return False
    if not data:
        return False
    level, name, text = msgspec.msgpack.decode(data)
    logging.getLogger(name).log(level, "[rank %d] %s", worker.rank, text)
    return True


def _words_of_end(code: int) -> str:
    if code >= 0:
        return f"has ended with code {code}; its own words are on the standard error"
    name = signal.Signals(-code).name if -code in {each.value for each in signal.Signals} else f"signal {-code}"
    hint = ", by a user or because the system was out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
