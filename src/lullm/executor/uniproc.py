"""UniProcExecutor: one worker in the engine's own process and thread."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import EngineDeadError, UnsupportedError
from lullm.executor.executor import Executor
from lullm.executor.workers import Answer, WorkerVerb, run_on
from lullm.machine.memory_ahead import MemoryAhead
from lullm.types.step import Running, StepPlan, StepResult
from lullm.types.wire.remote_call import RemoteCall
from lullm.worker.extension import open_worker
from lullm.worker.worker import Worker


class LocalWorkers:
    """Workers in this process, called one after the other on the caller's thread. Implements `Workers`."""

    def __init__(self, workers: Sequence[Worker]):
        self._workers = workers
        self._is_closed = False

    @property
    def num_workers(self) -> int:
        return len(self._workers)

    def call(self, verb: WorkerVerb, *args: Any) -> list[Answer]:
        return [_answer(getattr(worker, verb), *args) for worker in self._workers]

    def launch(self, plan: StepPlan) -> list[Running[StepResult]]:
        return [worker.launch_model(plan) for worker in self._workers]

    def run(self, call: RemoteCall) -> list[Answer]:
        if call.timeout is not None:
            raise UnsupportedError("a call on the caller's own thread cannot be cut off; leave timeout out")
        return [_answer(run_on, worker, call) for worker in self._workers]

    def weights_versions(self) -> list[int]:
        return [worker.weights_version() for worker in self._workers]

    def check_health(self) -> None:
        if self._is_closed:
            raise EngineDeadError("the engine has been shut down")

    def observe_loss(self, observer: Callable[[], None]) -> None:
        pass  # the worker is lost only with this process

    def close(self) -> None:
        self._is_closed = True
        for worker in self._workers:
            worker.shutdown()


def _answer(function: Callable[..., Any], *args: Any) -> Answer:
    try:
        return Answer(function(*args))
    except Exception as error:
        return Answer(error=error)


class UniProcExecutor(Executor):
    """One worker, which the constructor loads.

    Attributes:
        driver_worker: the worker. Trainers reach the model through it: `driver_worker.model_runner.model`.
    """

    def __init__(
        self, config: ResolvedConfig, model_config: ModelConfig, folder: Path, ahead: MemoryAhead | None = None
    ):
        self.driver_worker = open_worker(config, model_config, folder, ahead)
        super().__init__(LocalWorkers([self.driver_worker]))
