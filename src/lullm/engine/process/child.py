"""The engine's process: it builds an engine, serves it on a socket, and ends when the socket is closed.

It ignores signals of the terminal and of supervisors. The parent gets them too, and ends this process in order.
"""

import contextlib
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

from lullm.config.engine import EngineConfig
from lullm.engine.process.frame import framed, read_frames
from lullm.engine.process.message import HERE, Command, Ended, Start, decode_command, encode
from lullm.errors import LullmError
from lullm.executor.remote.pulse import Pulse
from lullm.log import get_logger, log_to_stderr
from lullm.types.wire.plain_error import plain_error

logger = get_logger(__name__)


def main(fd: int) -> None:
    """Serve on the socket `fd` until its other end is closed or the engine has ended."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=fd) as sock:
        frames = read_frames(sock)
        start = decode_command(next(frames))
        assert isinstance(start, Start)
        beating = threading.Thread(
            target=_beat, args=(Pulse(start.pulse), start.beat_s), name="lullm-beat", daemon=True
        )
        beating.start()
        if start.log_level is not None:
            log_to_stderr(start.log_level)
        if start.cores is not None:
            os.sched_setaffinity(0, start.cores)  # before torch counts them
        commands = _Commands(frames)
        try:
            _serve(start, sock, commands)
        except (LullmError, OSError) as error:
            sock.sendall(framed(encode(Ended(plain_error(error, HERE)))))
        except Exception as error:
            logger.exception("the engine could not be built")
            sock.sendall(framed(encode(Ended(plain_error(error, HERE)))))


def _beat(pulse: Pulse, beat_s: float) -> None:
    """Count heartbeats for as long as the process lives."""
    while True:
        pulse.beat()
        time.sleep(beat_s)


class _Commands:
    """Reads commands on a thread from the beginning, since the parent may die while the model is loaded."""

    def __init__(self, frames: Iterator[bytes]):
        self._frames = frames
        self._is_open = threading.Event()
        self._take: Callable[[Command], None] | None = None
        threading.Thread(target=self._run, name="lullm-commands", daemon=True).start()

    def open(self, take: Callable[[Command], None]) -> None:
        """Pass commands to `take` from now on; they have waited so far."""
        self._take = take
        self._is_open.set()

    def _run(self) -> None:
        for frame in self._frames:
            self._is_open.wait()
            assert self._take is not None
            self._take(decode_command(frame))
        # The parent is gone. Exit at once: the engine may be in a step of minutes.
        os._exit(1)


def _serve(start: Start, sock: socket.socket, commands: _Commands) -> None:
    """Raises as the constructor of `LLMEngine` does."""
    from lullm.engine.start.head_start import head_start

    config = EngineConfig(**start.options)
    with head_start(config) as ahead:
        from lullm.engine.llm_engine import LLMEngine
        from lullm.engine.process.service import EngineService
        from lullm.engine.stream_pace import StreamPace

        engine = LLMEngine(config, has_thread=True, ahead=ahead, pace=StreamPace(start.stream_pause_s))
    gc.freeze()  # a full collection of 280,000 permanent objects would stop all streams for 0.1 s
    service = EngineService(engine, config.idle, sock)
    thread = service.begin()
    commands.open(lambda command: service.take(command, thread))
    thread.join()
    with contextlib.suppress(LullmError):
        service.end()
