"""Chooses the executor of an engine. The only place that knows which kinds there are."""

from pathlib import Path

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.executor.protocol import Executor
from lullm.executor.uniproc import UniProcExecutor
from lullm.machine.memory_ahead import MemoryAhead


def open_executor(
    config: ResolvedConfig, model_config: ModelConfig, folder: Path, ahead: MemoryAhead | None = None
) -> Executor:
    """An executor whose workers have loaded the model of this folder, into the memory `ahead` if it fits. Blocking.

    Raises:
        ModelLoadError, CacheSizeError, UnsupportedError: a worker could not; none is left behind.
    """
    return UniProcExecutor(config, model_config, folder, ahead)
