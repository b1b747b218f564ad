"""ExternalExecutor: one worker in this process, and one each in other processes that run the same script."""

import dataclasses
import os
from contextlib import ExitStack
from pathlib import Path

from lullm.collective.seat import Seat
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.device.choice import SEVERAL_UNTRIED, check_different, take_launched_gpu
from lullm.errors import LullmError
from lullm.executor.executor import Executor
from lullm.executor.external.exchange import exchange
from lullm.executor.external.launch import num_local_ranks, open_group_of_all, open_launched_seat, open_seat_of_gpus
from lullm.executor.external.watch import Guard, Watch, unguarded
from lullm.executor.external.workers import ExternalWorkers
from lullm.executor.merge import values
from lullm.executor.workers import Answer
from lullm.log import get_logger
from lullm.machine.memory_ahead import MemoryAhead
from lullm.machine.processor import THREADS_VARIABLE, default_num_threads
from lullm.worker.extension import open_worker

logger = get_logger(__name__)


class ExternalExecutor(Executor):
    """Loads this process's worker, once all processes that share the model have started.

    Attributes:
        driver_worker: the worker of this process. Trainers reach its part of the model through it.

    Raises:
        ConfigError: this process was not started by a launcher.
        ModelLoadError and others: the error of the first process by rank that could not start; all of them raise it.
    """

    def __init__(
        self, config: ResolvedConfig, model_config: ModelConfig, folder: Path, ahead: MemoryAhead | None = None
    ):
        words = open_launched_seat(config.tensor_parallel_size, config.pipeline_parallel_size, config.step_timeout)
        with ExitStack() as undo:
            undo.callback(words.close)
            is_cpu = config.device == "cpu"
            seat, guard = (words, unguarded) if is_cpu else _on_gpus(words, config.step_timeout)
            undo.callback(seat.close)
            start = Answer()
            try:
                self.driver_worker = open_worker(_with_own_threads(config), model_config, folder, ahead, seat)
                undo.callback(self.driver_worker.shutdown)
            except Exception as error:
                start = Answer(error=error)
            values(exchange(words, start))
            undo.pop_all()
        super().__init__(ExternalWorkers(self.driver_worker, words, guard))


def _on_gpus(words: Seat, timeout: float) -> tuple[Seat, Guard]:
    """(the seat for tensors of GPUs, the guard of work with them), once every process has a GPU of its own.

    Answers are exchanged over `words`, since NCCL carries no bytes of a CPU.

    Raises:
        UnsupportedError, ConfigError: the error of the first process by rank, or two have the same GPU; all raise it.
    """
    try:
        own = Answer(take_launched_gpu())
    except LullmError as error:
        own = Answer(error=error)
    gpus = values(exchange(words, own))
    if len(gpus) == 1:
        return words, unguarded
    check_different(gpus)
    logger.warning(SEVERAL_UNTRIED)
    seat = open_seat_of_gpus(words, timeout)
    watch = Watch(open_group_of_all(words, timeout), seat.abort, timeout)
    words.undo.callback(watch.close)
    return seat, watch.over


def _with_own_threads(config: ResolvedConfig) -> ResolvedConfig:
    """Processes of one host share its cores, unless one of them has a chosen number of threads."""
    if config.threads is not None or THREADS_VARIABLE in os.environ:
        return config
    return dataclasses.replace(config, threads=max(1, default_num_threads() // num_local_ranks()))
