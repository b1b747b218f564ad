"""Workers with methods of the caller's own class: vLLM's worker extension class."""

from pathlib import Path

from lullm.collective.seat import Seat
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError
from lullm.machine.memory_ahead import MemoryAhead
from lullm.worker.remote_methods import extension_class, names_of
from lullm.worker.worker import Worker


def open_worker(
    config: ResolvedConfig,
    model_config: ModelConfig,
    folder: Path,
    ahead: MemoryAhead | None = None,
    seat: Seat | None = None,
) -> Worker:
    """A worker with the methods of `config.worker_extension_cls`. Raises as `Worker` and `worker_class` do."""
    return worker_class(config.worker_extension_cls)(config, model_config, folder, ahead, seat)


def worker_class(extension: str | type | None) -> type[Worker]:
    """`Worker`, or a class that is a `Worker` and the extension, whose methods have the worker as `self`.

    Raises:
        ConfigError: no such class, one with a name that workers have, or with an `__init__`, which is never called.
    """
    if not extension:
        return Worker
    found = extension_class(extension)
    if found.__init__ is not object.__init__:  # type: ignore[misc]
        raise ConfigError(
            f"worker_extension_cls: {found.__name__} has an __init__, which is not called: a worker is there before "
            "it; set what it needs in a method, by collective_rpc"
        )
    if clashes := sorted(names_of(found) & _names_of_workers()):
        raise ConfigError(f"worker_extension_cls: a worker has {', '.join(clashes)} already; give it another name")
    return type(f"{Worker.__name__}With{found.__name__}", (Worker, found), {})


def _names_of_workers() -> set[str]:
    """Annotations stand for the attributes that the constructor sets."""
    return {*dir(Worker), *Worker.__annotations__}
