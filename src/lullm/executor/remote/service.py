"""Service: runs a worker's commands in their order, and sends the answers."""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from lullm.executor.remote.message import OPENING, Command, Link, Reply, with_functions
from lullm.executor.workers import run_on
from lullm.types.step import Running, StepResult
from lullm.types.wire.importable import find_importable
from lullm.types.wire.plain_error import plain_error
from lullm.types.wire.remote_call import RemoteCall

if TYPE_CHECKING:
    from lullm.worker.worker import Worker


class Service:
    """Serves one worker until the command to stop.

    Args:
        open_worker: loads the worker.
        gives_results: the engine wants this rank's results of steps; otherwise only its errors.
    """

    def __init__(self, open_worker: Callable[[], "Worker"], link: Link, rank: int, gives_results: bool):
        self._open_worker = open_worker
        self._link = link
        self._rank = rank
        self._gives_results = gives_results

    def run(self) -> bool:
        """Serve until the end, then shut the worker down. Returns whether the worker could be opened."""
        try:
            worker = self._open_worker()
        except Exception as error:
            self._fail(OPENING, error, version=0)
            return False
        try:
            self._link.send(Reply(OPENING, "value", [worker.weights_version(), None]))
            if worker.is_accelerator:
                self._serve_beside(worker)
            else:
                self._serve(worker)
        finally:
            worker.shutdown()
        return True

    def _serve(self, worker: "Worker") -> None:
        """Serve commands one after the other: a host computes a step when its result is asked for."""
        for command in self._commands():
            if command.kind == "step":
                self._finish(command, self._launch(worker, command))
            else:
                self._answer(worker, command)

    def _serve_beside(self, worker: "Worker") -> None:
        """Wait for results on a thread of their own, so that the next step is launched meanwhile."""
        finishing: deque[Future[None]] = deque()
        with ThreadPoolExecutor(1, "lullm-results") as thread:
            for command in self._commands():
                if command.kind == "step":
                    finishing.append(thread.submit(self._finish, command, self._launch(worker, command)))
                else:
                    while finishing:
                        finishing.popleft().result()
                    self._answer(worker, command)
                while finishing and finishing[0].done():
                    finishing.popleft().result()

    def _commands(self) -> Iterator[Command]:
        while True:
            command = self._link.receive()
            if command.kind == "stop":
                return
            yield command

    def _launch(self, worker: "Worker", command: Command) -> Running[StepResult] | Exception:
        try:
            return worker.launch_model(command.content)
        except Exception as error:
            return error

    def _finish(self, command: Command, running: Running[StepResult] | Exception) -> None:
        try:
            if isinstance(running, Exception):
                raise running
            result = running.result()
        except Exception as error:
            self._fail(command.number, error, version=0)
        else:
            if self._gives_results:
                self._link.send(Reply(command.number, "result", result))

    def _answer(self, worker: "Worker", command: Command) -> None:
        try:
            value = _run(worker, command)
            reply = Reply(command.number, "value", [worker.weights_version(), value])
            self._link.send(reply)
        except Exception as error:
            self._fail(command.number, error, worker.weights_version())

    def _fail(self, number: int, error: Exception, version: int) -> None:
        self._link.send(Reply(number, "error", [version, plain_error(error, f"worker {self._rank}")]))


def _run(worker: "Worker", command: Command) -> Any:
    if command.kind == "call":
        verb, args = command.content
        return getattr(worker, verb)(*args)
    method, given, kwargs = command.content
    function = find_importable(method) if ":" in method else method
    return run_on(worker, RemoteCall(function, None, with_functions(given), kwargs))
