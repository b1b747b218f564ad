"""Forks a process per command, with torch and lullm imported and nothing run; `kit.ready_process` starts it.

Each is forked twice, so that the system gives it to the process that asked, whose own child it then is.
"""

import atexit
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import termios
import threading
import time
import traceback
import warnings
from typing import Any

IMPORTS = (
    "torch", "numpy", "safetensors.torch", "lullm.llm.llm", "lullm.engine.async_llm_engine", "lullm.cli.main",
    "lullm.engine.process.child", "lullm.engine.process.service", "lullm.executor.mp.child", "lullm.worker.worker",
    "lullm.server.app", "uvicorn", "httptools",
)  # fmt: skip
MAX_FILES = 250
BEYOND_GIVEN_NUMBERS = 500


def main() -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork has the thread that forks, and no other"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(sock: socket.socket) -> None:
    with sock:
        while (request := receive(sock)) is not None:
            sock.sendall(fork_twice(sock, *request).to_bytes(4, "little"))


def receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """A request and the files that its process gets. None: whoever asked has ended."""
    head, files, _, _ = socket.recv_fds(sock, 4, MAX_FILES)
    if not head:
        return None
    size, data = int.from_bytes(head, "little"), bytearray()
    while len(data) < size:
        data += sock.recv(size - len(data))
    return json.loads(data), files


def fork_twice(sock: socket.socket, request: dict[str, Any], files: list[int]) -> int:
    """The number of the process, whose parent is no longer here."""
    reading, writing = os.pipe()
    middle = os.fork()
    if middle == 0:
        middle, child = os.getpid(), os.fork()
        if child:
            os.write(writing, child.to_bytes(4, "little"))
            os._exit(0)
        while os.getppid() == middle:  # what it asks of the system for its parent's end is for the parent that stays
            time.sleep(0.0005)
        for each in (reading, writing):
            os.close(each)
        sock.close()
        own_server = fork_server(files) if request.pop("starts_ready") else None
        place(files, request.pop("numbers"))
        os.sched_setaffinity(0, request.pop("cores"))
        run(own_server, **request)
    os.waitpid(middle, 0)
    pid = int.from_bytes(os.read(reading, 4), "little")
    for each in (reading, writing, *files):
        os.close(each)
    return pid


def fork_server(files: list[int]) -> socket.socket:
    """The other end of a process that forks, too. It is forked before this one runs anything, and ends with it."""
    own, theirs = socket.socketpair()
    if os.fork() == 0:
        own.close()
        for number in (0, 1, 2, *files):  # whoever reads what this process says would wait for that one
            os.close(number)
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        serve(theirs)
        os._exit(0)
    theirs.close()
    with own:
        return socket.socket(fileno=fcntl.fcntl(own, fcntl.F_DUPFD_CLOEXEC, BEYOND_GIVEN_NUMBERS))


def place(files: list[int], numbers: list[int]) -> None:
    """Give the files these numbers."""
    above = max(numbers) + 1
    moved = [fcntl.fcntl(file, fcntl.F_DUPFD, above) for file in files]
    for file in files:
        os.close(file)
    for file, number in zip(moved, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)


def run(
    own_server: socket.socket | None,
    arguments: list[str],
    env: dict[str, str],
    cwd: str,
    in_session: bool,
    takes_terminal: bool,
) -> None:
    """What `python ARGUMENTS` does, to its end."""
    if in_session:
        os.setsid()
    if takes_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    open_streams("PYTHONUNBUFFERED" in env)
    if own_server is not None:
        import ready_process

        ready_process.start_by(own_server)
    status = status_of(arguments)
    threading._shutdown()  # as Python ends, but for the modules, whose memory the forks share
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = status or 120  # as Python says it
    os._exit(status)


def open_streams(is_direct: bool) -> None:
    """As Python opens them, which looks at what they are."""
    binary = io.BufferedReader(io.FileIO(0, "r", closefd=False))
    sys.stdin = sys.__stdin__ = io.TextIOWrapper(binary, sys.__stdin__.encoding)
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        file = io.FileIO(number, "w", closefd=False)
        is_by_line, encoding = number == 2 or os.isatty(number), getattr(sys, f"__{name}__").encoding
        written = file if is_direct else io.BufferedWriter(file)
        stream = io.TextIOWrapper(written, encoding, errors, None, is_by_line, is_direct)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def status_of(arguments: list[str]) -> int:
    sys.orig_argv[1:] = arguments
    is_safe = arguments[0] == "-P"
    if is_safe:
        arguments = arguments[1:]
    elif arguments[0] == "-W":
        warnings.simplefilter(arguments[1])
        arguments = arguments[2:]
    kind, *rest = arguments
    sys.argv[:] = ["-c", *rest[1:]] if kind == "-c" else rest if kind == "-m" else arguments
    own = {"-c": "", "-m": os.getcwd()}.get(kind, os.path.dirname(kind))
    asked = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*([] if is_safe else [own]), *asked, *(path for path in sys.path[1:] if path not in asked)]
    try:
        if kind == "-c":
            module = sys.modules["__main__"] = type(sys)("__main__")
            exec(compile(rest[0], "<string>", "exec"), vars(module))
        elif kind == "-m":
            sys.modules.pop(rest[0], None)  # runpy warns of it
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    main()
