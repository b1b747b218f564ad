"""Classes and functions by a name under which another process can import them: 'package.module:Name'."""

import importlib
from operator import attrgetter
from typing import Any

from lullm.errors import ConfigError


def is_importable_name(text: str) -> bool:
    """Whether a text may be such a name: 'package.module:Name', or vLLM's 'package.module.Name'."""
    module, _, name = _split(text)
    return all(part.isidentifier() for part in f"{module}.{name}".split("."))


def find_importable(text: str) -> Any:
    """The object of this name; imports its module. Raises ConfigError: it does not exist."""
    if not is_importable_name(text):
        raise ConfigError(f"{text!r} is not of the form 'package.module:Name'")
    module, _, name = _split(text)
    try:
        return attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{text!r} cannot be imported: {error}; its module must be on Python's path") from error


def importable_name(thing: Any) -> str:
    """The name under which another process can import a class or function. Raises ConfigError: it has none."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "<unnamed>")
    if module is None or module == "__main__" or "<" in name:
        raise ConfigError(
            f"{name} of {module} cannot be found by another process; put it at the top level of a module on Python's "
            "path, and give 'package.module:Name'"
        )
    return f"{module}:{name}"


def _split(text: str) -> tuple[str, str, str]:
    return text.partition(":") if ":" in text else text.rpartition(".")
