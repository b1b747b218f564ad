"""An error of a worker as plain data, and the same error here: its class, message, fields and notes."""

import builtins
import traceback
from typing import Any

import lullm.errors
from lullm.errors import LullmError
from lullm.executor.remote.codec import encode

_HOMES = {"lullm.errors": lullm.errors, "builtins": builtins}
"""Modules whose errors are built again under their own class."""


def plain_error(error: Exception, rank: int) -> list[Any]:
    """[home, class, arguments, fields, words, traceback], where `words` stand for an error of an unknown class."""
    kind = type(error)
    reduced = error.__reduce__()
    arguments, fields = [], {}
    home: str | None = kind.__module__
    if home in _HOMES and isinstance(reduced, tuple) and _is_plain(reduced[1:3]):
        arguments, fields = list(reduced[1]), dict(reduced[2] or {}) if len(reduced) > 2 else dict(vars(error))
    else:
        home = None
    words = f"worker {rank} failed with {kind.__module__}.{kind.__qualname__}: {error}"
    trace = "" if isinstance(error, LullmError) else "".join(traceback.format_exception(error))
    return [home, kind.__name__, arguments, fields, words, f"in worker {rank}:\n{trace}" if trace else ""]


def error_from(parts: list[Any]) -> Exception:
    """The error. A `LullmError` with the remote words stands for one whose class is not known here."""
    home, name, arguments, fields, words, trace = parts
    kind = getattr(_HOMES.get(home), name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        error: Exception = kind(*arguments)
        vars(error).update(fields)
    else:
        error = LullmError(words)
    if trace:
        error.add_note(trace)
    return error


def _is_plain(value: object) -> bool:
    try:
        encode(value)
    except TypeError:
        return False
    return True
