"""Methods that a caller brings along for the workers: what vLLM's trainers call a worker extension class."""

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lullm.collective.seat import Seat
from lullm.config.model import ModelConfig
from lullm.config.resolved import ResolvedConfig
from lullm.errors import ConfigError, InvalidRequestError
from lullm.machine.memory_ahead import MemoryAhead
from lullm.models.protocol import Model
from lullm.types.wire.importable import find_importable
from lullm.worker.worker import Worker

T = TypeVar("T")

REMOTE_METHODS = frozenset(
    {"available_memory_bytes", "modified_weights", "reload_weights", "resident_bytes", "weights_version"}
)
"""What `collective_rpc` takes by name: safe to offer to strangers with the admin key, and JSON in the answers."""


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
        ConfigError: no class is there, it has a name that workers have, or an `__init__`, which would never be called.
    """
    if not extension:
        return Worker
    found = _class_of(extension)
    if found.__init__ is not object.__init__:  # type: ignore[misc]
        raise ConfigError(
            f"worker_extension_cls: {found.__name__} has an __init__, which is not called: a worker is there before "
            "it; set what it needs in a method, by collective_rpc"
        )
    if clashes := sorted(_names(found) & _names_of_workers()):
        raise ConfigError(f"worker_extension_cls: a worker has {', '.join(clashes)} already; give it another name")
    return type(f"{Worker.__name__}With{found.__name__}", (Worker, found), {})


def call_with_model(worker: Worker, function: Callable[[Model], T]) -> T:
    """For `collective_rpc`: what `function` makes of the worker's model."""
    return function(worker.loaded.model)


def remote_methods(extension: str | type | None) -> frozenset[str]:
    """What `collective_rpc` takes by name: `REMOTE_METHODS`, and all methods of the extension without underscore."""
    if not extension:
        return REMOTE_METHODS
    found = _class_of(extension)
    own = (name for name in _names(found) if not name.startswith("_") and callable(getattr(found, name)))
    return REMOTE_METHODS.union(own)


def check_remote_call(
    known: Collection[str], method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> None:
    """Return if `method` is one of `known` and may have these arguments. Raises InvalidRequestError."""
    if method not in known:
        names = ", ".join(sorted(known))
        raise InvalidRequestError(f"{method!r} cannot be called by name; {names} can, or pass a function", "method")
    if method in REMOTE_METHODS and (args or kwargs):
        raise InvalidRequestError(f"{method!r} takes no arguments", "args" if args else "kwargs")


def _class_of(extension: str | type) -> type:
    found = find_importable(extension) if isinstance(extension, str) else extension
    if not isinstance(found, type):
        raise ConfigError(f"worker_extension_cls: {extension!r} is {type(found).__name__}, not a class")
    return found


def _names(of: type) -> set[str]:
    """Of its methods and attributes, inherited ones too, without those of the language."""
    return {name for name in dir(of) if not (name.startswith("__") and name.endswith("__"))}


def _names_of_workers() -> set[str]:
    """Annotations are of the attributes that a constructor sets."""
    return {*dir(Worker), *Worker.__annotations__}
