"""MultiprocExecutor: a process for every worker, all on this machine."""

from collections.abc import Callable
from pathlib import Path

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.device.choice import SEVERAL_UNTRIED, gpu_environments
from lullm.executor.mp.transport import RingTransport
from lullm.executor.remote.opening import OPENER, config_of_ranks
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.executor.remote.workers import RemoteExecutor, RemoteWorkers
from lullm.log import get_logger
from lullm.machine.cores import cpus_of_workers, read_cores
from lullm.types.parallel.placement import placements
from lullm.worker.meeting import Meeting

logger = get_logger(__name__)


class MultiprocExecutor(RemoteExecutor):
    """Starts a process per rank and returns once all have loaded their part of the model.

    Attributes:
        pids: of the processes, by rank.

    Raises:
        ModelLoadError, CacheSizeError and others: the error of the first rank that could not start; the others are
            stopped.
        WorkerLostError: one has died.
    """

    def __init__(self, config: ResolvedConfig, model_config: ModelConfig, folder: Path):
        self._given = (config, model_config, folder)
        self._sizes: tuple[int, int, int] | None = None
        self._observers: list[Callable[[], None]] = []
        super().__init__(self._start())

    def initialize_cache(self, num_blocks: int, num_host_blocks: int, max_model_len: int) -> None:
        super().initialize_cache(num_blocks, num_host_blocks, max_model_len)
        self._sizes = (num_blocks, num_host_blocks, max_model_len)

    def observe_loss(self, observer: Callable[[], None]) -> None:
        self._observers.append(observer)
        super().observe_loss(observer)

    def restart(self) -> None:
        self._workers.close()
        self._workers = self._start()
        if self._sizes is not None:
            self.initialize_cache(*self._sizes)
        for observer in self._observers:
            super().observe_loss(observer)

    def _start(self) -> RemoteWorkers:
        config, model_config, folder = self._given
        places = placements(config.tensor_parallel_size, config.pipeline_parallel_size)
        of_ranks = config_of_ranks(config, len(places))
        is_cpu = config.device == "cpu"
        shares = cpus_of_workers(read_cores(), len(places)) if is_cpu else []
        environments = [{} for _ in places] if is_cpu else gpu_environments(len(places))
        if not is_cpu and len(places) > 1:
            logger.warning(SEVERAL_UNTRIED)
        with Meeting.on_this_host(config.step_timeout, None if is_cpu else "nccl") as meeting:
            specs = [
                WorkerSpec.of_place(
                    config,
                    place,
                    OPENER,
                    [of_ranks, model_config, folder, meeting.rendezvous],
                    descriptors=list(meeting.descriptors),
                    cpus=sorted(shares[place.rank]) if shares else None,
                    environment=environments[place.rank],
                )
                for place in places
            ]
            transport = RingTransport(specs, config.worker_timeout)
            self.pids = transport.pids
            return RemoteWorkers(transport, specs, config.step_timeout)
