"""Mailbox: passes commands, and calls with an answer, to the engine's thread."""

import contextlib
import enum
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from lullm.errors import EngineDeadError, LullmError
from lullm.executor.feeding import Feeding

T = TypeVar("T")
Command = Callable[[], None]


class ThreadState(enum.Enum):
    """RUNNING takes all work. DRAINING takes no new requests and finishes the others. CLOSED and FAILED have ended."""

    RUNNING = enum.auto()
    DRAINING = enum.auto()
    CLOSED = enum.auto()
    FAILED = enum.auto()


class Mailbox:
    """Commands for the engine's thread in the order of their sending, and whether the thread still takes them.

    Attributes:
        state: changes under the lock that `send` takes, so that no command is sent and never read.
        feeding: the running updates whose next weight the thread may wait for. Their iterables must not send: thread
            and sender would wait for each other.
    """

    def __init__(self) -> None:
        self.state = ThreadState.RUNNING
        self.feeding = Feeding()
        self._error = EngineDeadError("the engine has been shut down")
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._lock = threading.Lock()

    # -- from any thread -----------------------------------------------------------------------------------------

    def check_running(self) -> None:
        """Check that the thread takes new work. Raises EngineDeadError otherwise, with the cause."""
        if self.state is ThreadState.DRAINING:
            raise EngineDeadError("the engine is being shut down and takes no new requests")
        if self.state is not ThreadState.RUNNING:
            raise self._error

    def send(self, command: Command) -> None:
        """Have `command` run between two steps.

        Raises:
            EngineDeadError: the thread has ended.
            InvalidRequestError: the thread waits for the caller (`feeding`).
        """
        self.feeding.check()
        with self._lock:
            if self._has_ended:
                raise self._error
            self._commands.put(command)

    def drain(self, command: Command) -> None:
        """End the thread after `command` and its last request. Does nothing if the thread has ended.

        Raises InvalidRequestError as `send` does.
        """
        self.feeding.check()
        with self._lock:
            if not self._has_ended:
                # Set the state first. A thread that ran the command and saw the old state would wait for another
                # command forever.
                self.state = ThreadState.DRAINING
                self._commands.put(command)

    @property
    def failure(self) -> EngineDeadError | None:
        """The error that ended the thread; None: it runs, or was stopped."""
        return self._error if self.state is ThreadState.FAILED else None

    # -- on the engine's thread ----------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether every command that was sent has run."""
        return self._commands.empty()

    def wait(self, timeout_s: float | None) -> bool:
        """Run the next command once it comes. Returns whether one came within `timeout_s`."""
        try:
            command = self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return False
        command()
        return True

    def run_all(self) -> None:
        """Run the commands that have come."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._commands.get_nowait()()

    def close(self, failure: EngineDeadError | None) -> EngineDeadError:
        """Refuse all later commands. Returns the error for their senders. `failure`: the error that ended it."""
        with self._lock:
            self._error = failure or self._error
            self.state = ThreadState.CLOSED if failure is None else ThreadState.FAILED
        return self._error

    @property
    def _has_ended(self) -> bool:
        return self.state in (ThreadState.CLOSED, ThreadState.FAILED)


@dataclass(slots=True, eq=False)
class EngineCall(Generic[T]):
    """A call that runs on the engine's thread, and the future for its answer. Methods: on the engine's thread.

    Args:
        is_foreign: the function is, or calls, the caller's own code: its errors are the caller's, not the engine's.
    """

    function: Callable[[], T]
    is_foreign: bool = False
    answer: Future[T] = field(default_factory=Future)

    def run(self) -> None:
        """Answer with the result or the error, unless the call was cancelled. Raises unexpected errors, too."""
        if not self.answer.set_running_or_notify_cancel():
            return
        try:
            result = self.function()
        except Exception as error:
            if self.is_foreign or isinstance(error, (LullmError, OSError)):
                self.answer.set_exception(error)
            else:
                self.answer.set_exception(unforeseen(error))
                raise
        else:
            self.answer.set_result(result)

    def fail(self, error: LullmError) -> None:
        """Answer with `error`; the call does not run."""
        if self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)


def unforeseen(error: Exception) -> EngineDeadError:
    """The caller's error for a bug in the engine."""
    return EngineDeadError(f"engine failed: {type(error).__name__}: {error}")
