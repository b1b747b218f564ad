"""RemoteWorkers: the workers of an engine in other processes, over any transport. Implements `Workers`."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lullm.errors import EngineDeadError, InvalidRequestError, UnsupportedError, WorkerLostError
from lullm.executor.executor import Executor
from lullm.executor.remote.message import OPENING, Command, CommandKind, FunctionName, Reply, Transport, with_names
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.executor.workers import Answer, WorkerVerb
from lullm.types.step import Running, StepPlan, StepResult
from lullm.types.wire.plain_error import error_of
from lullm.types.wire.remote_call import RemoteCall

STOP_S = 10.0
"""Seconds for workers to stop; then they are killed."""
_NAMING_S = 2.0
"""Seconds for the system to report which worker died; a worker that misses it may report an error before."""


class RemoteWorkers:
    """The constructor returns once every worker has loaded its model.

    Args:
        specs: of the workers. One of them gives the results of steps, since all of a stage sample alike.
        step_timeout_s: a worker whose step takes longer is considered to hang.

    Raises:
        LullmError and others: the error of the first worker by rank that could not load; all workers are stopped.
    """

    def __init__(self, transport: Transport, specs: Sequence[WorkerSpec], step_timeout_s: float):
        self._transport = transport
        [self._result_rank] = [spec.rank for spec in specs if spec.gives_results]
        self._step_timeout_s = step_timeout_s
        self._ranks = range(transport.num_workers)
        self._number = OPENING
        self._versions = [0] * transport.num_workers
        # commands that wait for answers: number -> replies by rank
        self._open: dict[int, dict[int, Reply]] = {OPENING: {}}
        self._abandoned: dict[int, set[int]] = {}  # calls that were given up: number -> ranks that have still to answer
        self._late_failure: Exception | None = None  # of a step whose result had arrived already
        self._is_closed = False
        self._is_broken = False  # workers may wait for each other forever
        try:
            for answer in self._answers(OPENING, self._ranks, is_over=_has_error):
                if answer.error is not None:
                    raise answer.error
        except BaseException:
            self._is_broken = True
            self.close()
            raise

    @property
    def num_workers(self) -> int:
        return len(self._ranks)

    def call(self, verb: WorkerVerb, *args: Any) -> list[Answer]:
        return self._answers(self._send("call", [verb, list(args)]), self._ranks)

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        return [_RemoteStep(self, self._send("step", plan))]

    def run(self, call: RemoteCall) -> list[Answer]:
        name = FunctionName.of(call.method).name if callable(call.method) else call.method
        given = with_names(call.args)
        try:
            number = self._send("run", [name, given, dict(call.kwargs or {})])
        except TypeError as error:
            raise InvalidRequestError(f"collective_rpc: {error}; give plain data or tensors", "args") from None
        return self._answers(number, self._ranks, call.timeout)

    def weights_versions(self) -> list[int]:
        return self._versions

    def check_health(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the engine has been shut down")
        self._transport.loss.check()

    def observe_loss(self, observer: Callable[[], None]) -> None:
        self._transport.loss.observe(observer)

    def close(self) -> None:
        self._is_closed = True
        self._transport.close(0.0 if self._is_broken else STOP_S)

    def step_result(self, number: int) -> StepResult:
        """The result of a step. Blocks. Raises the error of the first worker that failed in it, WorkerLostError."""
        replies = self._wait(number, {self._result_rank}, time.monotonic() + self._step_timeout_s, _has_error)
        if replies is None:
            reason = f"has not finished a step within step_timeout={self._step_timeout_s:g} s"
            self._transport.lose(self._result_rank, reason)
            self._transport.loss.check()
        assert replies is not None, "the worker is lost"
        for error in (*map(_error_in, replies.values()), self._late_failure):
            if error is not None:
                self._is_broken = True
                raise error
        result: StepResult = replies[self._result_rank].content
        return result

    def _send(self, kind: CommandKind, content: Any) -> int:
        self.check_health()
        self._number += 1
        command = Command(self._number, kind, content)
        self._transport.send(command)
        self._open[self._number] = {}
        return self._number

    def _answers(
        self,
        number: int,
        ranks: Collection[int],
        timeout_s: float | None = None,
        is_over: Callable[[dict[int, Reply]], bool] = lambda replies: False,
    ) -> list[Answer]:
        """The answers of these workers; with `is_over`, of those that have answered by then. Raises TimeoutError."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        replies = self._wait(number, ranks, deadline, is_over)
        if replies is None:
            raise TimeoutError(f"not all workers have answered within {timeout_s:g} s; the call goes on there")
        return [_answer(replies[rank]) for rank in sorted(replies)]

    def _wait(
        self, number: int, ranks: Collection[int], deadline: float | None, is_over: Callable[[dict[int, Reply]], bool]
    ) -> dict[int, Reply] | None:
        """The replies to a command, by rank; None: too late. Keeps replies to other commands for their callers."""
        replies = self._open[number]
        try:
            while not (replies.keys() >= set(ranks) or is_over(replies)):
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    self._abandoned[number] = set(ranks) - replies.keys()
                    return None
                for rank, reply in self._transport.receive(left_s):
                    self._take(rank, reply)
        finally:
            del self._open[number]
        if any(isinstance(_error_in(reply), WorkerLostError) for reply in replies.values()):
            self._name_the_lost()
        return replies

    def _name_the_lost(self) -> None:
        """Raises WorkerLostError, if the system reports in time which worker has died."""
        deadline = time.monotonic() + _NAMING_S
        while (left_s := deadline - time.monotonic()) > 0:
            self._transport.receive(left_s)

    def _take(self, rank: int, reply: Reply) -> None:
        if reply.kind != "result" and reply.content[0] > self._versions[rank]:
            self._versions[rank] = reply.content[0]
        if reply.number in self._open:
            self._open[reply.number][rank] = reply
        elif (missing := self._abandoned.get(reply.number)) is not None:
            missing.discard(rank)
            if not missing:
                del self._abandoned[reply.number]
        else:
            self._late_failure = self._late_failure or _error_in(reply)


class RemoteExecutor(Executor):
    """An executor whose workers are in other processes."""

    @property
    def driver_worker(self) -> None:
        """Raises UnsupportedError: only workers of this process have it."""
        raise UnsupportedError(
            "driver_worker is in another process; change weights by update_weights, or call collective_rpc, or use "
            "distributed_executor_backend='uni'"
        )


@dataclass(frozen=True, slots=True)
class _RemoteStep:
    """A step that was launched."""

    workers: RemoteWorkers
    number: int

    def result(self) -> StepResult:
        return self.workers.step_result(self.number)


def _has_error(replies: Mapping[int, Reply]) -> bool:
    return any(reply.kind == "error" for reply in replies.values())


def _error_in(reply: Reply) -> Exception | None:
    return error_of(reply.content[1]) if reply.kind == "error" else None


def _answer(reply: Reply) -> Answer:
    error = _error_in(reply)
    return Answer(reply.content[1]) if error is None else Answer(error=error)
