"""RenderProcess: one rendering process. It starts when it is first needed, is killed at its deadline, and starts again.

Python cannot interrupt a C call, and `{{ 'a' * n % x }}` or a filter may take any time. A process can be killed.
"""

import contextlib
import dataclasses
import json
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

import lullm.errors
from lullm.errors import LullmError
from lullm.log import get_logger
from lullm.text.template.failure import Failed, OutOfBounds, TemplateFailure
from lullm.units import MIB

logger = get_logger(__name__)

_LENGTH_BYTES = 8
_GRACE_S = 5.0
"""The process ends itself at its deadline; if that fails, the parent kills it so much later."""
_CODE = "import sys; sys.path[:0] = sys.argv[6:]; from lullm.text.template.child import main; main(int(sys.argv[1]), \
int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))"
_FAILURES = {kind.__name__: kind for kind in TemplateFailure.__subclasses__()}


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessBounds:
    """Bounds of one rendering: CPU time, time, address space, and the characters of its result and of every value."""

    cpu_s: float = 2.0
    wall_s: float = 20.0
    memory_bytes: int = 512 * MIB
    max_size: int = 32_000_000


class RenderProcess:
    """Renders templates in a process of its own. Thread-safe: requests take turns.

    Args:
        sources: the templates by name; each start compiles them.
    """

    def __init__(self, sources: Mapping[str, str], bounds: ProcessBounds):
        self._sources = dict(sources)
        self._bounds = bounds
        self._turn = threading.Lock()
        self._running: _Child | None = None
        self._is_closed = False

    def start(self) -> None:
        """Compile the templates. Raises Broken, OutOfBounds. LullmError: no process can be started."""
        with self._turn:
            self._ensure_running()

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The text of a template. Blocks, with the interpreter lock released.

        Raises:
            TemplateFailure. LullmError: no process can be started.
        """
        try:
            request = _frame({"verb": "render", "name": name, "variables": variables})
        except (TypeError, ValueError, RecursionError) as error:
            raise Failed(f"the template's arguments must be JSON: {error}") from None
        with self._turn:
            return self._ensure_running().ask(request)

    @property
    def has_started(self) -> bool:
        """Whether a process was ever started."""
        return self._running is not None

    def close(self) -> None:
        """End the process, also in the middle of a rendering. Idempotent; a later rendering raises LullmError."""
        self._is_closed = True
        running = self._running
        if running is not None:
            running.kill()  # not under the lock, which a rendering holds
            with self._turn:
                running.release()

    def _ensure_running(self) -> "_Child":
        if self._is_closed:
            raise LullmError("the engine was shut down, and with it the process that renders its chat template")
        if self._running is None or not self._running.is_usable:
            self._running = _Child(self._bounds)
            for name, source in self._sources.items():
                self._running.ask(_frame({"verb": "load", "name": name, "source": source}))
        return self._running


class _Child:
    def __init__(self, bounds: ProcessBounds):
        self._bounds = bounds
        self.is_usable = True
        ours, theirs = socket.socketpair()
        self._connection = ours
        try:
            with theirs:
                self._process = _spawn(theirs, bounds)
        except OSError as error:
            ours.close()
            raise LullmError(f"the process that renders chat templates cannot be started: {error}") from None
        self.release = weakref.finalize(self, _end, self._process, ours)

    def ask(self, frame: bytes) -> str:
        """The answer to a frame. Raises TemplateFailure; unless it says otherwise, the child is usable afterwards."""
        deadline = time.monotonic() + self._bounds.wall_s + _GRACE_S
        try:
            self._send(frame, deadline)
            length = int.from_bytes(self._receive(_LENGTH_BYTES, deadline), "little")
            if length > self._bounds.memory_bytes:
                raise OSError("an impossible answer")
            answer = json.loads(self._receive(length, deadline))
        except OSError:  # also a time-out and a closed connection
            self.is_usable = False
            raise self._cause_of_death() from None
        if answer.get("is_last"):
            self.is_usable = False
            self.release()
        if "failure" in answer:
            raise _FAILURES[answer["failure"]](answer["message"])
        return str(answer["text"])

    def kill(self) -> None:
        """End the process; from any thread, also while another waits in `ask`."""
        self._process.kill()

    def _send(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        while view:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            view = view[self._connection.send(view) :]

    def _receive(self, num_bytes: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            self._connection.settimeout(max(deadline - time.monotonic(), 0.001))
            chunk = self._connection.recv(min(num_bytes - len(data), 1 << 20))
            if not chunk:
                raise OSError("closed")
            data += chunk
        return bytes(data)

    def _cause_of_death(self) -> OutOfBounds:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)  # a socket is closed a little before its process has exited
        code = self._process.poll()
        self.release()
        if code == -signal.SIGPROF:
            return OutOfBounds(f"it takes more than {self._bounds.cpu_s:g} s of computing")
        if code in (-signal.SIGALRM, None):
            return OutOfBounds(f"it takes more than {self._bounds.wall_s:g} s")
        logger.warning("the process that renders chat templates ended with code %s", code)
        return OutOfBounds("it ended the process that rendered it; it may take too much memory")


def _spawn(connection: socket.socket, bounds: ProcessBounds) -> subprocess.Popen[bytes]:
    modules = (lullm.errors, jinja2, markupsafe)
    folders = dict.fromkeys(str(Path(str(module.__file__)).resolve().parent.parent) for module in modules)
    numbers = (connection.fileno(), bounds.memory_bytes, bounds.cpu_s, bounds.wall_s, bounds.max_size)
    return subprocess.Popen(
        # Isolated and without `site`: neither the environment nor .pth files add code, and it starts in 50 ms.
        [sys.executable, "-I", "-S", "-c", _CODE, *map(str, numbers), *folders],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={},
        pass_fds=[connection.fileno()],
        start_new_session=True,  # Ctrl-C on the terminal is for the parent, which ends it
    )


def _end(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Kill the process and take its exit status; both ends of the connection are then closed."""
    process.kill()
    process.wait()
    connection.close()


def _frame(message: Mapping[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    return len(data).to_bytes(_LENGTH_BYTES, "little") + data
