"""The names that `collective_rpc` takes, and their checks. Loads no torch."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lullm.errors import ConfigError, InvalidRequestError
from lullm.types.wire.importable import find_importable

if TYPE_CHECKING:
    from lullm.models.protocol import Model
    from lullm.worker.worker import Worker

T = TypeVar("T")

REMOTE_METHODS = frozenset(
    {
        "available_memory_bytes",
        "compute_weight_checksums",
        "modified_weights",
        "reload_weights",
        "resident_bytes",
        "weights_version",
    }
)
"""Names that `collective_rpc` takes: safe to offer to strangers with the admin key, and JSON in the answers."""

_ARGUMENTS = {"reload_weights": ("weights_path",)}
"""The arguments of those that take any, by keyword."""


def remote_methods(extension: str | type | None) -> frozenset[str]:
    """All names that `collective_rpc` takes: `REMOTE_METHODS`, and the extension's methods without underscore."""
    if not extension:
        return REMOTE_METHODS
    found = extension_class(extension)
    own = (name for name in names_of(found) if not name.startswith("_") and callable(getattr(found, name)))
    return REMOTE_METHODS.union(own)


def check_remote_call(
    known: Collection[str], method: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> None:
    """Check that `method` is one of `known` and takes these arguments. Raises InvalidRequestError."""
    if not isinstance(method, str) or method not in known:
        names = ", ".join(sorted(known))
        raise InvalidRequestError(f"{method!r} cannot be called by name; {names} can, or pass a function", "method")
    takes = _ARGUMENTS.get(method, ())
    if method in REMOTE_METHODS and (args or not set(takes).issuperset(kwargs or ())):
        named = f"no arguments but {', '.join(takes)}, by keyword" if takes else "no arguments"
        raise InvalidRequestError(f"{method!r} takes {named}", "args" if args else "kwargs")


def call_with_model(worker: "Worker", function: "Callable[[Model], T]") -> T:
    """Call `function` with the worker's model. For `collective_rpc`."""
    return function(worker.loaded.model)


def extension_class(extension: str | type) -> type:
    """The class of `worker_extension_cls`, given itself or by its name. Raises ConfigError: there is none."""
    found = find_importable(extension) if isinstance(extension, str) else extension
    if not isinstance(found, type):
        raise ConfigError(f"worker_extension_cls: {extension!r} is {type(found).__name__}, not a class")
    return found


def names_of(cls: type) -> set[str]:
    """The names of its methods and attributes, inherited ones too, without those of the language."""
    return {name for name in dir(cls) if not (name.startswith("__") and name.endswith("__"))}
