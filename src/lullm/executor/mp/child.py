"""The program of a worker process: it reads its spec, serves its worker, and ends with the engine's process.

It loads no torch before its worker.
"""

import ctypes
import os
import select
import signal
import socket
import sys
import threading
from typing import NoReturn

from lullm.executor.mp.bell import Bell
from lullm.executor.mp.ring import RingMemory, RingReader, RingWriter
from lullm.executor.remote.message import Command, Reply
from lullm.executor.remote.records import log_over
from lullm.executor.remote.service import Service
from lullm.executor.remote.worker_spec import WorkerSpec

_PR_SET_PDEATHSIG = 1
FAILED = 1
"""Exit code of a process whose worker could not be opened; the engine has its error."""


def main(
    spec_fd: int, lifeline_fd: int, commands_fd: int, answers_fd: int, own_bell_fd: int, engine_bell_fd: int
) -> NoReturn:
    """Serve until the engine says stop, and end the process.

    The arguments are inherited descriptors, whose numbers are the same in both processes.

    Args:
        spec_fd: memory with the `WorkerSpec`.
        commands_fd, answers_fd: memory of rings.
        lifeline_fd: a socket that closes with either process; log records go over it.
    """
    _die_with_parent()
    spec = WorkerSpec.from_memory(spec_fd)
    if spec.cpus is not None:
        os.sched_setaffinity(0, spec.cpus)
    lifeline = socket.socket(fileno=lifeline_fd)
    bell, engine_bell = Bell(own_bell_fd), Bell(engine_bell_fd)
    answers = RingMemory(answers_fd)
    beating = threading.Thread(target=_beat, args=(answers, lifeline, spec.beat_s), name="lullm-beat", daemon=True)
    beating.start()
    log_over(lifeline.send, spec.log_level)
    link = _RingLink(
        bell, RingReader(RingMemory(commands_fd), spec.rank, engine_bell), RingWriter(answers, [engine_bell])
    )
    code = 0 if Service(spec.open, link, spec.rank, spec.gives_results).run() else FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the kernel frees memory at once; Python would take a second to unload torch


class _RingLink:
    """Both rings. Implements `Link`."""

    def __init__(self, bell: Bell, commands: RingReader, answers: RingWriter):
        self._bell = bell
        self._commands = commands
        self._answers = answers

    def receive(self) -> Command:
        while (message := self._commands.read()) is None:
            self._bell.wait()
        return Command.from_bytes(message)

    def send(self, reply: Reply) -> None:
        self._answers.write(reply.parts(), self._bell.wait)


def _die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends, even if this process is stopped."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _beat(memory: RingMemory, lifeline: socket.socket, beat_s: float) -> None:
    """Count heartbeats until the engine's process has ended; then end this one, whatever it does."""
    poll = select.poll()
    poll.register(lifeline, select.POLLRDHUP)  # the parent may have died before the kernel was asked to watch it
    memory.beat()
    while not poll.poll(beat_s * 1000):
        memory.beat()
    os.kill(os.getpid(), signal.SIGKILL)
