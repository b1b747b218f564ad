"""WorkerActor: the actor that Ray starts on a node. It connects to the engine, and serves its worker until told to
stop.

It loads no torch before its worker.
"""

import os
import select
import socket
import threading
from dataclasses import dataclass

import msgspec

from lullm.executor.ray.frame import FrameSocket
from lullm.executor.remote.codec import decode
from lullm.executor.remote.message import Command, Reply
from lullm.executor.remote.records import log_over
from lullm.executor.remote.service import Service
from lullm.executor.remote.worker_spec import WorkerSpec

_CONNECT_S = 30.0


@dataclass(frozen=True, slots=True)
class ActorSpec:
    """An actor's task.

    Args:
        host, port: where the engine listens.
        secret: proves that the engine's own Ray has started it.
    """

    worker: WorkerSpec
    host: str
    port: int
    secret: bytes


class Hello(msgspec.Struct):
    """The first message of an actor, which identifies it."""

    secret: bytes
    rank: int
    pid: int


class WorkerActor:
    """One worker of an engine, in a process that Ray has started."""

    def run(self, data: bytes) -> None:
        """Serve until the engine says stop. `data`: an `ActorSpec`. Blocks for as long as the worker lives."""
        # torch reads it when it is loaded. Spinning threads starve each other beside other workers.
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
        spec: ActorSpec = decode(memoryview(bytearray(data)))
        worker = spec.worker
        connection = socket.create_connection((spec.host, spec.port), timeout=_CONNECT_S)
        connection.settimeout(None)
        end, is_over = FrameSocket(connection), threading.Event()
        end.send("hello", [msgspec.msgpack.encode(Hello(spec.secret, worker.rank, os.getpid()))])
        beating = threading.Thread(target=_beat, args=(end, worker.beat_s, is_over), name="lullm-beat", daemon=True)
        beating.start()
        try:  # the heartbeat ends with the call, whatever ends it
            log_over(lambda record: end.send("log", [record]), worker.log_level)
            Service(worker.open, _Link(end), worker.rank, worker.gives_results).run()
        finally:
            is_over.set()
            end.end()
            beating.join()
            end.close()


class _Link:
    """Implements `Link`."""

    def __init__(self, end: FrameSocket):
        self._end = end

    def receive(self) -> Command:
        _, data = self._end.receive()
        return Command.from_bytes(data)

    def send(self, reply: Reply) -> None:
        self._end.send("answer", reply.parts())


def _beat(end: FrameSocket, beat_s: float, is_over: threading.Event) -> None:
    """Send heartbeats until `is_over`. If the engine is gone before, end this process, whatever it does."""
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    try:
        while not poll.poll(beat_s * 1000):
            end.send("beat")
    except OSError:
        pass
    if not is_over.is_set():
        os._exit(1)
