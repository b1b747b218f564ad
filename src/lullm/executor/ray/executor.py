"""RayExecutor: a Ray actor for every worker, on any number of nodes."""

import dataclasses
import os
from contextlib import ExitStack
from pathlib import Path

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ModelLoadError
from lullm.executor.ray.actors import Actors
from lullm.executor.ray.cluster import Reservation, WorkerNeeds, connect, release, reserve
from lullm.executor.ray.transport import SocketTransport
from lullm.executor.remote.opening import config_of_ranks, open_ranked_worker
from lullm.executor.remote.worker_spec import WorkerSpec
from lullm.executor.remote.workers import RemoteExecutor, RemoteWorkers
from lullm.log import get_logger
from lullm.types.parallel.placement import Placement, placements
from lullm.types.parallel.rendezvous import LocalFile, Rendezvous
from lullm.types.wire.importable import importable_name
from lullm.weights.folder import resolve_model
from lullm.worker.meeting import Meeting
from lullm.worker.worker import Worker

logger = get_logger(__name__)


class RayExecutor(RemoteExecutor):
    """Starts an actor per rank and returns once all have loaded their part of the model.

    Raises:
        UnsupportedError: Ray is missing.
        ConfigError: there is no cluster, or it has too little free.
        ModelLoadError, CacheSizeError and others: the error of the first rank that could not start.
        WorkerLostError: one has died, or has not come. After any error all are stopped.
    """

    def __init__(self, config: ResolvedConfig, model_config: ModelConfig, folder: Path):
        ray = connect()
        places = placements(config.tensor_parallel_size, config.pipeline_parallel_size)
        on_gpu = config.device != "cpu"
        cores = None if config.threads is None else max(1, config.threads // len(places))
        resource = "GPU" if on_gpu else "CPU"
        needs = WorkerNeeds(config.pipeline_parallel_size, config.tensor_parallel_size, resource, cores)
        with ExitStack() as undo:
            reserved = reserve(ray, needs)
            undo.callback(release, ray, reserved, resource)
            of_ranks = _configs(config, reserved)
            host = ray.util.get_node_ip_address()
            own = ray.get_runtime_context().get_node_id()
            is_local = all(node.node_id == own for node in reserved.nodes) and not on_gpu
            timeout = config.step_timeout
            meeting = undo.enter_context(
                Meeting.on_this_host(timeout) if is_local else Meeting.at(host, timeout, "nccl" if on_gpu else "gloo")
            )
            specs = [
                WorkerSpec.of_place(
                    config,
                    place,
                    importable_name(open_on_node),
                    [of_ranks[place.rank], model_config, folder, meeting.rendezvous, os.getpid()],
                )
                for place in places
            ]
            actors = Actors(ray, reserved, specs, host, resource)
            transport = SocketTransport(actors.ends, actors, config.worker_timeout)
            super().__init__(RemoteWorkers(transport, specs, config.step_timeout))
            self._undo = undo.pop_all()  # the meeting store, which live workers use, and the reservation

    def shutdown(self) -> None:
        super().shutdown()
        self._undo.close()


def _configs(config: ResolvedConfig, reserved: Reservation) -> list[ResolvedConfig]:
    """The config of each rank. A worker has the cores that Ray gives; workers of a node share its memory."""
    shared = config_of_ranks(config, len(reserved.nodes))
    if config.device != "cpu":
        return [shared] * len(reserved.nodes)
    shares = [config.gpu_memory_utilization / reserved.nodes.count(node) for node in reserved.nodes]
    return [dataclasses.replace(shared, threads=reserved.amount, gpu_memory_utilization=share) for share in shares]


def open_on_node(
    place: Placement,
    config: ResolvedConfig,
    model_config: ModelConfig,
    folder: Path,
    rendezvous: Rendezvous,
    engine_pid: int,
) -> Worker:
    """Open a worker in an actor. Blocking. Raises as `open_ranked_worker` does."""
    if isinstance(rendezvous, LocalFile):  # a file of the engine's process, which is not this one's parent
        descriptor = os.open(f"/proc/{engine_pid}/fd/{rendezvous.descriptor}", os.O_RDWR)
        rendezvous = dataclasses.replace(rendezvous, descriptor=descriptor)
    return open_ranked_worker(place, config, model_config, _folder_here(config, folder), rendezvous)


def _folder_here(config: ResolvedConfig, folder: Path) -> Path:
    """The model's folder on this node. Raises ModelLoadError: it does not exist here."""
    if folder.exists():
        return folder
    try:
        return resolve_model(config.model, config.revision)  # a hub id
    except ModelLoadError as error:
        raise ModelLoadError(
            f"{folder} is not on the node {os.uname().nodename}: put the model at the same path on every node, or give "
            f"a hub id ({error})"
        ) from error
