"""Chooses the executor of an engine. The only place that knows all kinds."""

from collections.abc import Callable
from pathlib import Path

from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError
from lullm.executor.executor import Executor
from lullm.executor.external.executor import ExternalExecutor
from lullm.executor.mp.executor import MultiprocExecutor
from lullm.executor.ray.executor import RayExecutor
from lullm.executor.uniproc import UniProcExecutor
from lullm.machine.memory_ahead import MemoryAhead
from lullm.types.wire.importable import find_importable


def open_executor(
    config: ResolvedConfig, model_config: ModelConfig, folder: Path, ahead: MemoryAhead | None = None
) -> Executor:
    """An executor whose workers have loaded the model of this folder, into the memory `ahead` if it fits. Blocking.

    Raises:
        ModelLoadError, CacheSizeError, UnsupportedError: a worker failed; all are stopped.
    """
    backend = config.executor_backend
    if backend == "uni":
        return UniProcExecutor(config, model_config, folder, ahead)
    if backend == "mp":
        return MultiprocExecutor(config, model_config, folder)
    if backend == "ray":
        return RayExecutor(config, model_config, folder)
    if backend == "external_launcher":
        return ExternalExecutor(config, model_config, folder, ahead)
    return executor_class(backend)(config, model_config, folder, ahead)


def executor_class(backend: str | type) -> Callable[..., Executor]:
    """A caller's own executor class, which takes `open_executor`'s arguments. Raises ConfigError: it lacks a verb."""
    found = find_importable(backend) if isinstance(backend, str) else backend
    verbs = {name for name in vars(Executor) if not name.startswith("_")}
    if not isinstance(found, type) or (missing := sorted(verbs - set(dir(found)))):
        lacks = f" has no {', '.join(missing)}" if isinstance(found, type) else " is no class"
        raise ConfigError(
            f"distributed_executor_backend: {found!r}{lacks}; derive it from lullm.executor.executor.Executor"
        )
    return found
