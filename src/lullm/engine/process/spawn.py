"""EngineProcess: the process of an engine, from its start to its end, and our end of the socket."""

import contextlib
import dataclasses
import logging
import os
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any

from lullm.config.engine import EngineConfig
from lullm.engine.process.frame import framed, read_frames
from lullm.engine.process.message import Ended, Ready, Start, decode_news, encode
from lullm.errors import EngineDeadError, ModelLoadError, UnsupportedError
from lullm.types.wire.plain_error import error_of

_CODE = "import sys; sys.path[:] = sys.argv[2:]; from lullm.engine.process.child import main; main(int(sys.argv[1]))"
_DYING_S = 2.0
"""A socket is closed a little before its process is over."""
_ENDING_S = 10.0
"""For the interpreter to shut down behind an engine that has ended."""


class EngineProcess:
    """A clean interpreter that builds an engine. It ends with this object, with its socket, and with this process.

    A fork of this process has a copy, which reads nothing and ends nobody.

    Args:
        cores: the only ones it runs on; None: any of this process's.

    Attributes:
        owner: the process that this was made in. sock: blocking until `wait_ready` has returned.

    Raises:
        UnsupportedError: an option is an object of Python, which cannot go to another process.
    """

    def __init__(self, config: EngineConfig, stream_pause_s: float = 0.0, cores: Sequence[int] | None = None):
        start = Start(_options(config), stream_pause_s, _log_level(), None if cores is None else tuple(cores))
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                # -P: the working directory does not come before the library. Nothing but records leaves it, on stderr.
                [sys.executable, "-P", "-c", _CODE, str(theirs.fileno()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=2,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C on the terminal is for this process, which ends the other
            )
        self.owner = os.getpid()
        self._end = weakref.finalize(self, _end, self.owner, self._process, self.sock)
        self.sock.sendall(framed(encode(start)))

    def wait_ready(self) -> Ready:
        """Wait until the engine is there. Raises what its constructor raises; ModelLoadError: it died."""
        for frame in read_frames(self.sock):
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

    def cause_of_death(self) -> str:
        """In words, once the socket is closed."""
        try:
            code = self._process.wait(_DYING_S)
        except subprocess.TimeoutExpired:
            return "the engine's process has closed its connection"
        finally:
            self.close()
        if code == -signal.SIGKILL:
            return "the engine's process was killed (SIGKILL); the system may have run out of memory"
        if code < 0:
            return f"the engine's process was ended by the signal {signal.Signals(-code).name}"
        return f"the engine's process ended with code {code}"

    def join(self) -> None:
        """Let the process end by itself, but not for ever. Blocking; idempotent."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_ENDING_S)
        self.close()

    def close(self) -> None:
        """End the process now. Idempotent."""
        self._end()


def dead(cause: str) -> EngineDeadError:
    """The error of all who use an engine whose process has died."""
    return EngineDeadError(f"{cause}; start it again")


def _end(owner: int, process: subprocess.Popen[bytes], sock: socket.socket) -> None:
    """Kill the process, if it is there, and take its exit status; in a fork, leave it alone."""
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
    """The level of lullm's records, if they go somewhere."""
    logger = logging.getLogger("lullm")
    return logging.getLevelName(logger.level) if logger.handlers and logger.level else None
