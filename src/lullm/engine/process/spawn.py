"""EngineProcess: the process of an engine, from its start to its end, and the client's end of the socket."""

import contextlib
import dataclasses
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lullm.config.engine import EngineConfig
from lullm.engine.process.frame import framed, read_frames
from lullm.engine.process.message import Ended, Ready, Start, decode_news, encode
from lullm.errors import EngineDeadError, ModelLoadError, UnsupportedError
from lullm.executor.remote.pulse import Pulse, Silence, pulse_memory
from lullm.types.wire.plain_error import error_of

_CODE = "import sys; sys.path[:] = sys.argv[2:]; from lullm.engine.process.child import main; main(int(sys.argv[1]))"
_DYING_S = 2.0
"""A socket is closed a little before its process has exited."""
_ENDING_S = 10.0
"""Seconds for the interpreter to shut down after the engine has ended."""


class EngineProcess:
    """A fresh interpreter that builds an engine. It ends with this object, with its socket, and with this process.

    A fork of this process has a copy, which reads nothing and ends no process.

    Args:
        cores: the only ones that it runs on; None: any of this process's.
        timeout_s: it is lost after so long without a heartbeat; None: as `config` says of workers.
        environment: variables beside those of this process.

    Attributes:
        owner: the process that made this object.
        sock: blocking until `wait_ready` has returned.

    Raises:
        UnsupportedError: an option is a Python object that cannot be sent to another process.
    """

    def __init__(
        self,
        config: EngineConfig,
        stream_pause_s: float = 0.0,
        cores: Sequence[int] | None = None,
        timeout_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        options = _options(config)
        self._fault: str | None = None
        self.sock, theirs = socket.socketpair()
        with theirs, pulse_memory() as pulse:
            self._pulse, self._silence = Pulse(pulse), Silence(timeout_s or config.worker_timeout)
            self._process = subprocess.Popen(
                # -P: modules in the working directory do not shadow the library's. stderr carries log records only.
                [sys.executable, "-P", "-c", _CODE, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno(), pulse],
                env=None if environment is None else os.environ | environment,
                start_new_session=True,  # Ctrl-C on the terminal goes to this process only, which ends the other
            )
        self.owner = os.getpid()
        self._end = weakref.finalize(self, _end, self.owner, self._process, self.sock)
        allowed = None if cores is None else tuple(cores)
        start = Start(options, stream_pause_s, pulse, self.tick_s, _log_level(), allowed)
        self.sock.sendall(framed(encode(start)))

    def wait_ready(self) -> Ready:
        """Wait until the engine is ready. Raises as its constructor does; ModelLoadError: the process died or hangs."""
        for frame in read_frames(_PolledSocket(self.sock, self.tick_s, self.lose_if_silent)):
            news = decode_news(frame)
            if isinstance(news, Ready):
                self.sock.setblocking(False)
                return news
            if isinstance(news, Ended) and news.error is not None:
                self.close()
                raise error_of(news.error)
        raise ModelLoadError(f"no engine was built: {self.cause_of_death()}")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def tick_s(self) -> float:
        """Seconds between two calls of `lose_if_silent`."""
        return self._silence.tick_s

    def lose_if_silent(self) -> None:
        """Kill the process if its heartbeat has stopped for too long; then its socket is closed."""
        if self._end.alive and (fault := self._silence.fault(self._pulse.beats)) is not None:
            self._fault = self._fault or f"the engine's process {fault}"
            self._process.kill()

    def cause_of_death(self) -> str:
        """Why the process died, in words; once the socket is closed."""
        try:
            code = self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            return "the engine's process has closed its connection"
        finally:
            self.close()
        if self._fault is not None:
            return self._fault
        if code == -signal.SIGKILL:
            return "the engine's process was killed (SIGKILL); the system may have run out of memory"
        if code < 0:
            return f"the engine's process was ended by the signal {signal.Signals(-code).name}"
        return f"the engine's process ended with code {code}"

    def join(self) -> None:
        """Wait for the process to end by itself, for `_ENDING_S` at most. Idempotent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        self.close()

    def close(self) -> None:
        """End the process now. Idempotent."""
        self._end()


def dead(cause: str) -> EngineDeadError:
    """The error for all users of an engine whose process has died."""
    return EngineDeadError(f"{cause}; start it again")


class _PolledSocket:
    """A blocking socket to read from. Calls `look` every `tick_s` while it waits."""

    def __init__(self, sock: socket.socket, tick_s: float, look: Callable[[], None]):
        self._sock = sock
        self._tick_s = tick_s
        self._look = look

    def recv(self, num_bytes: int) -> bytes:
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not poll.poll(self._tick_s * 1000):
            self._look()
        return self._sock.recv(num_bytes)


def _end(owner: int, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
    """Kill the process if it lives, and read its exit status. In a fork do nothing."""
    if os.getpid() == owner:
        process.kill()
        process.wait()
    sock.close()


def _options(config: EngineConfig) -> dict[str, Any]:
    options = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for name, value in options.items():
        try:
            encode(value)
        except TypeError:
            raise UnsupportedError(
                f"{name}={value!r} cannot go to an engine in another process; name it as text, or leave the engine in "
                "this one"
            ) from None
    return options


def _log_level() -> str | None:
    """The level of lullm's records, if this process logs them."""
    logger = logging.getLogger("lullm")
    return logging.getLevelName(logger.level) if logger.handlers and logger.level else None
