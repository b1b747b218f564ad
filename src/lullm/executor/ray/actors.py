"""Actors: the processes that Ray has started for the workers of an engine."""

import contextlib
import hmac
import secrets
import select
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from lullm.errors import WorkerLostError
from lullm.executor.ray.actor import ActorSpec, Hello, WorkerActor
from lullm.executor.ray.cluster import Reservation, remove
from lullm.executor.ray.frame import FrameSocket
from lullm.executor.remote.codec import encode
from lullm.executor.remote.worker_spec import WorkerSpec

START_S = 120.0
"""For Ray to start all processes, and for them to connect: importing lullm from a slow disk takes some seconds."""
_HELLO_S = 5.0
_HELLO_BYTES = 1024
_WORDS_S = 1.0


class Actors:
    """Starts the actors. The constructor returns once all have connected.

    Args:
        specs, reserved: of the workers, by rank.
        host: the address of this node, as other nodes reach it.

    Raises:
        WorkerLostError: one has not come; all are stopped.
    """

    def __init__(self, ray: Any, reserved: Reservation, specs: Sequence[WorkerSpec], host: str, resource: str):
        self._ray = ray
        self._reserved = reserved
        self._pids: dict[int, int] = {}
        self._actors: list[Any] = []
        self._runs: list[Any] = []  # each ends with its actor
        self.ends: list[FrameSocket] = []
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        remote = ray.remote(WorkerActor)
        secret = secrets.token_bytes(32)
        with contextlib.ExitStack() as undo, socket.create_server((host, 0), backlog=len(specs)) as server:
            undo.callback(self.kill)
            for index, spec in enumerate(specs):
                wanted = (
                    {"num_gpus": reserved.amount, "num_cpus": 0} if resource == "GPU" else {"num_cpus": reserved.amount}
                )
                place = strategy(reserved.group, placement_group_bundle_index=index)
                self._actors.append(remote.options(**wanted, scheduling_strategy=place, max_restarts=0).remote())
                whole = ActorSpec(spec, host, server.getsockname()[1], secret)
                self._runs.append(self._actors[-1].run.remote(b"".join(encode(whole))))
            self.ends = self._accepted(server, secret)
            undo.pop_all()

    def name(self, rank: int) -> str:
        """Such as 'worker 1 (process 312 on 10.0.0.2)'."""
        where = self._reserved.nodes[rank].address
        return f"worker {rank} (process {self._pids[rank]} on {where})" if rank in self._pids else f"worker {rank}"

    def last_words(self, rank: int) -> str:
        """Why an actor has ended, as far as it is known. Takes a second at most."""
        try:
            self._ray.get(self._runs[rank], timeout=_WORDS_S)
        except self._ray.exceptions.GetTimeoutError:
            return ""
        except Exception as error:  # Ray's own error, or the actor's
            return _cause(error)
        return "it has ended"

    def wait(self, timeout_s: float) -> None:
        """Return once all have ended, or after `timeout_s`."""
        with contextlib.suppress(Exception):  # the cluster may be gone, and the actors with it
            self._ray.wait(self._runs, num_returns=len(self._runs), timeout=timeout_s)

    def kill(self) -> None:
        """Kill all that still run. Idempotent, from any thread."""
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor, no_restart=True)
        remove(self._ray, self._reserved.group)

    def _accepted(self, server: socket.socket, secret: bytes) -> list[FrameSocket]:
        """The connections by rank. Raises WorkerLostError: one has ended, or has not come in time."""
        found: dict[int, FrameSocket] = {}
        deadline = time.monotonic() + START_S
        try:
            while len(found) < len(self._runs):
                if select.select([server], [], [], 0.1)[0]:
                    connection, _ = server.accept()
                    end = FrameSocket(connection)
                    hello = _hello(end, secret)
                    if hello is None or hello.rank in found:
                        end.close()
                    else:
                        found[hello.rank], self._pids[hello.rank] = end, hello.pid
                    continue
                self._check_starting(found, time.monotonic() > deadline)
        except BaseException:
            for end in found.values():
                end.close()
            raise
        return [found[rank] for rank in range(len(self._runs))]

    def _check_starting(self, found: dict[int, FrameSocket], is_late: bool) -> None:
        """Raises WorkerLostError: an actor has ended, or has not come in time."""
        ended, _ = self._ray.wait(self._runs, num_returns=1, timeout=0)
        for rank in (self._runs.index(run) for run in ended):
            raise WorkerLostError(
                f"worker {rank} on {self._reserved.nodes[rank].address} has not started: {self.last_words(rank)}; "
                "every node needs the same versions of Python, Ray and lullm"
            )
        if is_late:
            missing = sorted(range(len(self._runs)) - found.keys())
            nodes = ", ".join(self._reserved.nodes[rank].address for rank in missing)
            raise WorkerLostError(
                f"workers {', '.join(map(str, missing))} on {nodes} have not connected within {START_S:g} s; the nodes "
                "must reach this one by its address in Ray, on any port"
            )


def _hello(end: FrameSocket, secret: bytes) -> Hello | None:
    """An actor's first message; None: a stranger's connection."""
    end.lose_after(_HELLO_S)
    try:
        kind, data = end.receive(_HELLO_BYTES)
        hello = msgspec.msgpack.decode(data, type=Hello)
    except (OSError, EOFError, ValueError):
        return None
    return hello if kind == "hello" and hmac.compare_digest(hello.secret, secret) else None


def _cause(error: Exception) -> str:
    """The line of Ray's error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = [line for line in lines if "Error" in line or "died" in line or "killed" in line or "exit" in line]
    return (words or lines or [type(error).__name__])[-1][:400]
