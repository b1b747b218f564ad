"""The rendering process: a clean interpreter with Jinja alone. It renders one request after another until it is killed.

It reads frames (8 bytes of length, then JSON) from a socket and answers each: first the templates, then requests.
Timers end it in the middle of any C call, its parent's death ends it at the next read, and its memory is limited. It
reads no file and writes none.
"""

import contextlib
import json
import resource
import signal
import socket
from typing import Any

import jinja2

from lullm.text.template.failure import OutOfBounds, TemplateFailure
from lullm.text.template.sandbox import Sandbox

LENGTH_BYTES = 8
_UNLIMITED = 1 << 62
"""Steps; here timers bound a rendering."""


def main(fd: int, memory_bytes: int, cpu_s: float, wall_s: float, max_size: int) -> None:
    """Serve on the socket `fd` until its other end is closed."""
    _limit(memory_bytes)
    renderer = _Renderer(max_size)
    with socket.socket(fileno=fd) as connection:
        while (frame := _receive(connection)) is not None:
            _start_timers(cpu_s, wall_s)
            answer = _answer(renderer, frame)
            _start_timers(0, 0)
            data = json.dumps(answer).encode()
            connection.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)
            if answer.get("is_last"):
                return


class _Renderer:
    """The templates by name."""

    def __init__(self, max_size: int):
        self._sandbox = Sandbox(only_bounded=False)
        self._max_size = max_size
        self._templates: dict[str, jinja2.Template] = {}

    def load(self, name: str, source: str) -> str:
        template = self._sandbox.compile_bounded(source)
        assert template is not None
        self._templates[name] = template
        return ""

    def render(self, name: str, variables: dict[str, Any]) -> str:
        return self._sandbox.render(self._templates[name], variables, _UNLIMITED, self._max_size)


def _answer(renderer: _Renderer, frame: bytearray) -> dict[str, Any]:
    try:
        request = json.loads(frame)
        return {"text": getattr(renderer, request.pop("verb"))(**request)}
    except MemoryError:
        error: TemplateFailure = OutOfBounds("it takes too much memory")
        return {"failure": "OutOfBounds", "message": str(error), "is_last": True}  # too little memory may be left
    except TemplateFailure as error:
        return {"failure": type(error).__name__, "message": str(error)}


def _limit(memory_bytes: int) -> None:
    for kind, value in ((resource.RLIMIT_AS, memory_bytes), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 0)):
        with contextlib.suppress(ValueError, OSError):  # macOS has no limit of address space
            resource.setrlimit(kind, (value, value))
    for number in (signal.SIGPROF, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)  # ends the process, also within one C call


def _start_timers(cpu_s: float, wall_s: float) -> None:
    """Start the timers; 0 stops them."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _receive(connection: socket.socket) -> bytearray | None:
    """The next frame; None at the end of the connection."""
    length = _receive_exactly(connection, LENGTH_BYTES)
    return None if length is None else _receive_exactly(connection, int.from_bytes(length, "little"))


def _receive_exactly(connection: socket.socket, num_bytes: int) -> bytearray | None:
    data = bytearray()
    while len(data) < num_bytes:
        chunk = connection.recv(min(num_bytes - len(data), 1 << 20))
        if not chunk:
            return None
        data += chunk
    return data
