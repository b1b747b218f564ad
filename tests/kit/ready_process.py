"""Processes of Python that start in milliseconds: each is forked from one that has imported torch and lullm.

For those whose own start is not under test. What says what a fresh interpreter loads, or what it has in memory, starts
one by `subprocess`. So does everything that a started process starts itself, unless its environment holds CHILDREN_TOO.
"""

import atexit
import ctypes
import fcntl
import json
import os
import socket
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any, Self

TIMEOUT_S = 120
CHILDREN_TOO = {"READY_CHILDREN": "1"}
"""Variables with which the processes that a started one starts are ready as well, and theirs."""
_PR_SET_CHILD_SUBREAPER = 36
_READ_AT_IMPORT = (
    "GOMP_", "HF_", "KMP_", "LD_", "MALLOC_", "MKL_", "OMP_NUM", "OPENBLAS_", "PYTHON", "TORCH_",
    "TRANSFORMERS_", "TRITON_",
)  # fmt: skip
"""Variables that libraries read once: with others than those of the process that forks, one starts from nothing."""
_TAKEN_LATER = ("PYTHONPATH", "PYTHONUNBUFFERED")
_FOLDERS = os.pathsep.join(filter(None, sys.path))
"""Of this process before any test has put others on its path, which would stay on that of all forks."""


class ReadyPopen(subprocess.Popen):
    """`subprocess.Popen`, also in that the process is a child of this one, for commands of this Python."""

    def _execute_child(
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
    ):  # fmt: skip
        *_, start_new_session, process_group = others
        environment = dict(os.environ if env is None else env)
        is_plain = not shell and executable is None and process_group == -1 and preexec_fn in (None, take_terminal)
        server = _server()
        if not (is_plain and _is_of_this_python(args) and server.can_fork(environment)):
            super()._execute_child(
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, *others,
            )  # fmt: skip
            return
        request = {
            "numbers": [0, 1, 2, *pass_fds],
            "arguments": [str(each) for each in args[1:]],
            "env": environment,
            "cwd": str(cwd or os.getcwd()),
            "cores": sorted(os.sched_getaffinity(0)),
            "in_session": start_new_session,
            "takes_terminal": preexec_fn is take_terminal,
            "starts_ready": environment.items() >= CHILDREN_TOO.items(),
        }
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self.pid = server.fork(request, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def ready_run(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(command, capture_output=True, text=True, **options)`."""
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    with ReadyPopen([str(word) for word in command], text=True, **options) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            process.kill()
            raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def take_terminal() -> None:
    """A `preexec_fn`: so that Ctrl-C is sent to the process on the terminal that is its standard input."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _is_of_this_python(args: Any) -> bool:
    """Whether it is a command that `ready_server.run` knows."""
    if isinstance(args, str | bytes) or args[0] != sys.executable or len(args) < 2:
        return False
    words = [str(word) for word in args[1:]]
    words = words[1:] if words[0] == "-P" else words[2:] if words[:2] == ["-W", "error"] else words
    return words[0] in ("-c", "-m") or not words[0].startswith("-")


class _Server:
    """The process that forks. It ends with its socket."""

    def __init__(self, sock: socket.socket, environment: dict[str, str]) -> None:
        """`environment`: with which it has started."""
        self._lock = threading.Lock()
        self._sock = sock
        self._once_read, self._own_start = _once_read(environment), _own_start(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    def started(cls) -> Self:
        sock, theirs = socket.socketpair()
        environment = os.environ | {"PYTHONPATH": _FOLDERS}
        server = cls(sock, environment)
        with theirs:
            server._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ready_server.py")), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(server.close)
        return server

    def can_fork(self, environment: dict[str, str]) -> bool:
        """Whether a fresh interpreter with these variables would have imported the same."""
        return _once_read(environment) == self._once_read and _own_start(environment) in (None, self._own_start)

    def fork(self, request: dict[str, Any], files: list[int]) -> int:
        data = json.dumps(request).encode()
        with self._lock:
            _adopt(True)
            try:
                socket.send_fds(self._sock, [len(data).to_bytes(4, "little")], files)
                self._sock.sendall(data)
                answer = self._sock.recv(4)
            finally:
                _adopt(False)
        assert answer, "the process that forks has ended"
        return int.from_bytes(answer, "little")

    def close(self) -> None:
        self._sock.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def start_by(sock: socket.socket) -> None:
    """What this process, a fork of one that forks, starts is forked by the process at the other end."""
    _servers[os.getpid()] = _Server(sock, os.environ | {"PYTHONPATH": _FOLDERS})
    subprocess.Popen = ReadyPopen  # type: ignore[misc]


_servers: dict[int, _Server] = {}
_opening = threading.Lock()


def _server() -> _Server:
    """Of this process, not of one that it is a fork of."""
    with _opening:
        return _servers.get(os.getpid()) or _servers.setdefault(os.getpid(), _Server.started())


def _once_read(environment: dict[str, str]) -> dict[str, str]:
    found = {name: value for name, value in environment.items() if name.startswith(_READ_AT_IMPORT)}
    return {name: value for name, value in found.items() if name not in _TAKEN_LATER}


def _own_start(environment: dict[str, str]) -> Path | None:
    """The file that Python runs first, if one of these folders has one."""
    found = (Path(folder, "sitecustomize.py") for folder in environment.get("PYTHONPATH", "").split(os.pathsep))
    return next(filter(Path.exists, found), None)


def _adopt(switch: bool) -> None:
    """Whether this process becomes the parent of its grandchildren that lose theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(switch), 0, 0, 0)
