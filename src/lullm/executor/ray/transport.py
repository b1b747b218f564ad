"""SocketTransport: workers at the other ends of sockets, wherever they are. Implements `Transport`."""

import contextlib
import queue
import threading
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from lullm.executor.ray.frame import FrameSocket
from lullm.executor.remote.loss import Loss
from lullm.executor.remote.message import Command, Reply
from lullm.executor.remote.records import log_record_of

if TYPE_CHECKING:
    from lullm.executor.ray.actors import Actors


class SocketTransport:
    """Sends commands and receives replies. The constructor returns at once.

    Args:
        ends: by rank.
        timeout_s: a worker is lost after so long without a heartbeat.
    """

    def __init__(self, ends: Sequence[FrameSocket], processes: "Actors", timeout_s: float):
        self._ends = ends
        self._state = _State(ends, processes)
        self.loss = self._state.loss
        self._threads = [
            threading.Thread(
                target=_read, args=(self._state, rank, end, timeout_s), name=f"lullm-worker-{rank}", daemon=True
            )
            for rank, end in enumerate(ends)
        ]
        for thread in self._threads:
            thread.start()
        self._close = weakref.finalize(self, _release, self._state, self._threads)

    @property
    def num_workers(self) -> int:
        return len(self._ends)

    def send(self, command: Command) -> None:
        self.loss.check()
        parts = command.parts()
        for rank, end in enumerate(self._ends):
            try:
                end.send("command", parts)
            except OSError as error:
                self._state.lose(rank, f"is out of reach: {error}")
        self.loss.check()

    def receive(self, timeout_s: float | None) -> list[tuple[int, Reply]]:
        come = self._state.come
        try:
            items = [come.get(timeout=None if timeout_s is None else max(timeout_s, 0.0))]
        except queue.Empty:
            return []
        with contextlib.suppress(queue.Empty):
            while True:
                items.append(come.get_nowait())
        found = [item for item in items if item is not None]
        if len(found) < len(items):
            come.put(None)  # replies from before a loss count; the next call finds no others
        if not found:
            self.loss.check()
        return found

    def lose(self, rank: int, reason: str) -> None:
        self._state.lose(rank, reason)

    def close(self, grace_s: float) -> None:
        if self._close.alive:
            if grace_s and not self.loss.is_there:
                self.loss.expect()
                for end in self._ends:
                    with contextlib.suppress(OSError):
                        end.send("command", Command(0, "stop").parts())
                self._state.processes.wait(grace_s)
            self._close()


class _State:
    """State that the reading threads share with their transport, without keeping it alive."""

    def __init__(self, ends: Sequence[FrameSocket], processes: "Actors"):
        self.ends = ends
        self.processes = processes
        self.come: queue.SimpleQueue[tuple[int, Reply] | None] = queue.SimpleQueue()  # None: a worker is lost
        self.loss = Loss(self._end_all)

    def lose(self, rank: int, reason: str) -> None:
        self.loss.declare(f"{self.processes.name(rank)} {reason}")

    def _end_all(self) -> None:
        for end in self.ends:
            end.end()
        self.processes.kill()
        self.come.put(None)


def _read(state: _State, rank: int, end: FrameSocket, timeout_s: float) -> None:
    """Read the messages of one worker until it has ended."""
    end.lose_after(timeout_s)
    try:
        while True:
            kind, data = end.receive()
            if kind == "answer":
                state.come.put((rank, Reply.from_bytes(data)))
            elif kind == "log":
                log_record_of(rank, data)
    except TimeoutError:
        state.lose(rank, f"has given no sign of life for worker_timeout={timeout_s:g} s: its node is gone, or it hangs")
    except (EOFError, OSError, ValueError, msgspec.DecodeError) as error:
        if not (state.loss.is_there or state.loss.is_expected):
            state.lose(rank, f"has died: {state.processes.last_words(rank) or error}")


def _release(state: _State, threads: Sequence[threading.Thread]) -> None:
    state.loss.expect()
    for end in state.ends:
        end.end()
    state.processes.kill()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    for end in state.ends:
        end.close()
