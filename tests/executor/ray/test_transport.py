"""Workers at the other ends of sockets: messages of any size, losses, silence, strangers. Without Ray."""

import contextlib
import logging
import socket
import threading
import time

import msgspec
import pytest
import torch

from lullm.errors import ConfigError, WorkerLostError
from lullm.executor.ray import actor
from lullm.executor.ray.actor import ActorSpec, Hello, WorkerActor
from lullm.executor.ray.actors import _hello
from lullm.executor.ray.frame import FrameSocket
from lullm.executor.ray.transport import SocketTransport
from lullm.executor.remote.codec import encode
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.executor.remote.workers import RemoteWorkers
from lullm.types.wire.remote_call import RemoteCall

BEAT_S = 0.05


class Echo:
    """A worker that gives back what it gets."""

    is_accelerator = False

    def __init__(self, rank):
        self.rank = rank
        self.version = 0

    def update_weights(self, tensors):
        self.version += 1
        return self.rank, tensors

    def settle(self):
        """It has no weights."""

    def fail(self):
        raise ValueError(f"rank {self.rank} does not want to")

    def say(self, words):
        logging.getLogger("lullm.tests").warning(words)

    def weights_version(self):
        return self.version

    def shutdown(self):
        pass


class Threads:
    """As `Actors`, in threads."""

    def __init__(self, ends):
        self.ends = ends
        self.threads = []
        self.num_kills = 0

    def name(self, rank):
        return f"worker {rank}"

    def last_words(self, rank):
        return "its thread has ended"

    def wait(self, timeout_s):
        for thread in self.threads:
            thread.join(timeout_s)

    def kill(self):
        self.num_kills += 1
        for end in self.ends:
            end.end()


def open_echo(rank):
    return Echo(rank)


@pytest.fixture
def start(monkeypatch):
    """(opener) -> (workers, processes) of two actors in threads; `os._exit` ends their threads only."""
    monkeypatch.setattr(actor.os, "_exit", lambda code: None)
    monkeypatch.setattr(actor, "log_over", lambda send, level: None)
    found = []

    def start(opener):
        ends, specs, processes = [None, None], [], Threads([])
        found.append(processes)
        for rank in range(2):
            spec = WorkerSpec(rank, opener, [rank], rank == 0, BEAT_S, logging.INFO)
            specs.append(spec)
            whole = ActorSpec(spec, *server.getsockname()[:2], b"secret")
            data = b"".join(encode(whole))
            thread = threading.Thread(target=_run, args=(data,), daemon=True)
            thread.start()
            processes.threads.append(thread)
            end = FrameSocket(server.accept()[0])
            hello = _hello(end, b"secret")
            assert hello is not None and hello.rank == rank
            ends[rank] = end
        processes.ends = ends
        transport = SocketTransport(ends, processes, timeout_s=1.0)
        return RemoteWorkers(transport, specs, 5.0), processes

    with socket.create_server(("127.0.0.1", 0)) as server:
        yield start
        for processes in found:
            processes.wait(5)
            assert processes.num_kills and not any(thread.is_alive() for thread in processes.threads)


@pytest.fixture
def started(start):
    workers, processes = start(f"{__name__}:open_echo")
    yield workers, processes
    workers.close()


def _run(data):
    with contextlib.suppress(EOFError, OSError):  # how an actor ends with its engine
        WorkerActor().run(data)


def test_what_a_node_cannot_open(start):
    """The error comes, and the signs of life end: else an engine waited for ever."""
    with pytest.raises(ConfigError, match="no_such_module"):
        start("no_such_module:open_worker")


def test_messages_of_any_size(started):
    workers, _ = started
    for size in (0, 1, 20_000, 3_000_001):
        tensor = torch.arange(size, dtype=torch.float32)
        answers = workers.run(RemoteCall("update_weights", None, [tensor]))
        for rank, answer in enumerate(answers):
            found_rank, found = answer.value
            assert found_rank == rank and torch.equal(found, tensor)
    assert workers.weights_versions() == [4, 4]
    errors = [answer.error for answer in workers.run(RemoteCall("fail"))]
    assert [type(error) for error in errors] == [ValueError, ValueError] and "rank 1 does not want" in str(errors[1])


def test_signs_of_life_count(started):
    workers, _ = started
    time.sleep(1.2)  # longer than the time-out
    assert workers.run(RemoteCall("update_weights", None, [1]))[1].value == (1, 1)


def test_one_that_dies(started):
    workers, processes = started
    seen = threading.Event()
    workers.observe_loss(seen.set)
    processes.ends[1].end()
    assert seen.wait(2)
    with pytest.raises(WorkerLostError, match="worker 1 has died: its thread has ended$"):
        workers.check_health()
    with pytest.raises(WorkerLostError, match="worker 1"):
        workers.run(RemoteCall("update_weights", None, [1]))
    assert processes.num_kills == 1, "the others are killed at once"


def test_one_that_hangs(started, monkeypatch):
    workers, _ = started
    held = threading.Event()
    monkeypatch.setattr(FrameSocket, "send", lambda self, kind, parts=(): kind == "beat" and held.wait(5))
    began = time.monotonic()
    with pytest.raises(WorkerLostError, match="no sign of life for worker_timeout=1 s"):
        workers.run(RemoteCall("update_weights", None, [1]))
    assert time.monotonic() - began < 2.5
    held.set()


HELLO = msgspec.msgpack.encode(Hello(b"secret", 0, 1))


def framed(data):
    return len(data).to_bytes(8, "little") + b"\0" + data


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff" * 64,
        b"",
        framed(HELLO[:-1]),
        framed(b"\x01"),
        framed(msgspec.msgpack.encode(Hello(b"another", 0, 1))),
        framed(HELLO)[:8] + b"\x02" + HELLO,
    ],
)
def test_strangers(said):
    """Who does not say the secret is shown the door, whatever else is said."""
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        end = FrameSocket(ours)
        assert _hello(end, b"secret") is None
        end.close()


def test_who_knows_the_secret():
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(framed(HELLO))
        end = FrameSocket(ours)
        assert _hello(end, b"secret") == Hello(b"secret", 0, 1)
        end.close()
