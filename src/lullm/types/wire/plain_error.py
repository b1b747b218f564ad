"""An error as plain data for another process, and the same error there: its class, message, fields and notes."""

import builtins
import os
import traceback
from typing import Any

import msgspec

import lullm.errors
from lullm.errors import LullmError

_HOMES = {"lullm.errors": lullm.errors, "builtins": builtins}
"""Modules whose errors are rebuilt as their own class."""
_ATOMS = (type(None), bool, int, float, bytes)


class PlainError(msgspec.Struct, array_like=True, gc=False):
    """An error in MessagePack's types.

    `home`: the module of its class `name`; None: other processes get its text only. `arguments`: of the class.
    `fields`: its attributes. `trace`: its traceback as text; empty: a user's mistake, not a bug.
    """

    home: str | None
    name: str
    words: str
    arguments: list[Any]
    fields: dict[str, Any]
    trace: str = ""


def plain_error(error: BaseException, where: str) -> PlainError:
    """The error as plain data. `where`: the place that raised it, such as 'worker 3'."""
    kind = type(error)
    home: str | None = kind.__module__
    arguments: list[Any] = []
    fields: dict[str, Any] = {}
    try:
        if home not in _HOMES:
            raise TypeError
        made_of = error.__reduce__()
        assert isinstance(made_of, tuple)
        arguments = [_plain(each) for each in made_of[1]]
        fields = {name: _plain(value) for name, value in vars(error).items()}
    except TypeError:
        home, arguments, fields = None, [], {}
    words = f"{where} failed with {kind.__module__}.{kind.__qualname__}: {error}"
    trace = "" if isinstance(error, LullmError) else f"in {where}:\n{''.join(traceback.format_exception(error))}"
    return PlainError(home, kind.__name__, _text(words), arguments, fields, _text(trace))


def error_of(plain: PlainError) -> Exception:
    """The error. If its class is not known here, a `LullmError` with its text."""
    kind = getattr(_HOMES.get(plain.home or ""), plain.name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        error: Exception = kind(*plain.arguments)
        vars(error).update(plain.fields)
    else:
        error = LullmError(plain.words)
    if plain.trace:
        error.add_note(plain.trace)
    return error


def lullm_error_of(plain: PlainError) -> LullmError:
    """The same as an error of lullm's own: a request ends with no other."""
    error = error_of(plain)
    return error if isinstance(error, LullmError) else LullmError(str(error))


def _plain(value: object) -> Any:
    """The value, in MessagePack's types. Raises TypeError: it has no such type."""
    if isinstance(value, (str, os.PathLike)):
        return _text(os.fsdecode(value))
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if type(value) not in _ATOMS or (isinstance(value, int) and value.bit_length() > 63):
        raise TypeError
    return value


def _text(text: str) -> str:
    """The text without lone surrogates, which MessagePack lacks. File names that are not UTF-8 have them."""
    return text.encode("utf-8", "replace").decode()
