"""Opens the worker of a rank in its process, from a config that divides a host's resources between the ranks."""

import dataclasses
from pathlib import Path

from lullm.config.family.table import family_of
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError
from lullm.machine.processor import default_num_threads
from lullm.types.parallel.placement import Placement
from lullm.types.parallel.rendezvous import Rendezvous
from lullm.types.wire.importable import importable_name
from lullm.worker.extension import open_worker
from lullm.worker.meeting import open_seat
from lullm.worker.worker import Worker

OPENER = "lullm.executor.remote.opening:open_ranked_worker"


def config_of_ranks(config: ResolvedConfig, num_workers: int) -> ResolvedConfig:
    """The config of each of several workers on one host: classes become names, and a CPU's resources are divided.

    Threads, and memory of the KV cache and of swapping, are for all workers together, so that several workers have room
    for as many tokens as one. A GPU's memory is its own worker's.

    Raises:
        UnsupportedError: a class has no name under which another process can import it.
    """
    extension = config.worker_extension_cls
    try:
        name = importable_name(extension) if isinstance(extension, type) else extension
    except ConfigError as error:
        raise UnsupportedError(f"worker_extension_cls: {error}") from None
    num_threads = config.threads or default_num_threads()
    named = dataclasses.replace(config, worker_extension_cls=name, distributed_executor_backend=None)
    if config.device != "cpu" or num_workers == 1:
        return named
    kv_bytes = config.kv_cache_memory_bytes
    return dataclasses.replace(
        named,
        threads=max(1, num_threads // num_workers),
        kv_cache_memory_bytes=None if kv_bytes is None else max(1, kv_bytes // num_workers),
        gpu_memory_utilization=config.gpu_memory_utilization / num_workers,
        swap_space=config.swap_space / num_workers,
    )


def open_ranked_worker(
    placement: Placement, config: ResolvedConfig, model_config: ModelConfig, folder: Path, rendezvous: Rendezvous
) -> Worker:
    """Take the seat among the workers, and load. Blocking. Raises as `Worker` and `open_seat` do."""
    if model_config.foreign is None:
        _find_family(model_config.architecture)
    return open_worker(config, model_config, folder, None, open_seat(placement, rendezvous))


def _find_family(architecture: str) -> None:
    """Load the package that registers a model. Raises ModelLoadError: only the engine's process knows it."""
    try:
        family_of(architecture)
    except ModelLoadError:
        raise ModelLoadError(
            f"{architecture} was registered in the engine's process only (register_model); worker processes find it by "
            "an entry point of the group lullm.models: give its package one, or use distributed_executor_backend='uni'"
        ) from None
