"""Errors as data: the classes of `lullm.errors`, and the few of Python's that calls may raise."""

from collections.abc import Iterator

import lullm.errors
from lullm.engine.process.message import WireError
from lullm.errors import InvalidRequestError, LullmError


def encode_error(error: BaseException) -> WireError:
    """Whatever it is; a class that the other side cannot know goes as a `LullmError` with its name."""
    if isinstance(error, InvalidRequestError):
        return WireError(type(error).__name__, _text(str(error)), _maybe(error.param), _maybe(error.code))
    if isinstance(error, OSError) and not isinstance(error, LullmError):
        return WireError("OSError", _text(error.strerror or str(error)), errno=error.errno)
    if isinstance(error, (LullmError, TypeError)):
        return WireError(type(error).__name__, _text(str(error)))
    return WireError("LullmError", _text(f"{type(error).__name__}: {error}"))


def decode_error(wire: WireError) -> Exception:
    """The error in its class."""
    if wire.kind == "OSError":
        return OSError(wire.text) if wire.errno is None else OSError(wire.errno, wire.text)
    if wire.kind == "TypeError":
        return TypeError(wire.text)
    kind = next((each for each in _kinds(LullmError) if each.__name__ == wire.kind), LullmError)
    if issubclass(kind, InvalidRequestError):
        return kind(wire.text, wire.param, wire.code)
    return kind(wire.text)


def lullm_error(wire: WireError) -> LullmError:
    """The error of a request, which is one of lullm's own."""
    error = decode_error(wire)
    return error if isinstance(error, LullmError) else lullm.errors.LullmError(str(error))


def _kinds(kind: type[LullmError]) -> Iterator[type[LullmError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def _maybe(text: str | None) -> str | None:
    return None if text is None else _text(text)


def _text(text: str) -> str:
    """Without lone surrogates, which MessagePack has not."""
    return text.encode("utf-8", "replace").decode()
