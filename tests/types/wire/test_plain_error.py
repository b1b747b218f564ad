"""Errors arrive under their own class, with message, fields and notes; those of unknown classes as words."""

import errno
from pathlib import Path

import msgspec
import pytest

from lullm.errors import (
    CacheSizeError,
    EngineAsleepError,
    InvalidRequestError,
    LullmError,
    ModelLoadError,
    WakeUpError,
    WorkerLostError,
)
from lullm.types.wire.plain_error import PlainError, error_of, lullm_error_of, plain_error


def crossed(error):
    try:
        raise error
    except Exception as raised:
        return error_of(
            msgspec.msgpack.decode(msgspec.msgpack.encode(plain_error(raised, "worker 3")), type=PlainError)
        )


@pytest.mark.parametrize(
    "kind", [CacheSizeError, EngineAsleepError, ModelLoadError, WakeUpError, WorkerLostError, ValueError, MemoryError]
)
def test_the_same_class_and_words(kind):
    found = crossed(kind("what was wrong"))
    assert type(found) is kind and str(found) == "what was wrong"


def test_fields_and_notes():
    error = InvalidRequestError("wrong", "method", "code")
    error.add_note("a note")
    found = crossed(error)
    assert (str(found), found.param, found.code, found.__notes__) == ("wrong", "method", "code", ["a note"])


def test_errors_of_the_system_keep_their_number():
    found = crossed(OSError(errno.ENOSPC, "No space left on device", "file"))
    assert type(found) is OSError and found.errno == errno.ENOSPC and found.filename == "file"


def test_what_is_no_error_of_lullm_brings_its_traceback():
    (note,) = crossed(RuntimeError("a bug")).__notes__
    assert note.startswith("in worker 3:\nTraceback") and "RuntimeError: a bug" in note and __file__ in note
    assert not hasattr(crossed(ModelLoadError("a user's mistake")), "__notes__")


class ForeignError(Exception):
    pass


@pytest.mark.parametrize(
    "error",
    [ForeignError("strange"), ValueError(object()), KeyError(1 << 64), ExceptionGroup("two", [ValueError("one")])],
    ids=["class", "argument", "number", "group"],
)
def test_what_is_unknown_here_becomes_words(error):
    found = crossed(error)
    assert type(found) is LullmError
    assert str(found).startswith("worker 3 failed with ") and str(error) in str(found)
    assert "Traceback" in found.__notes__[0]


def test_what_messagepack_cannot_hold():
    """A file name that is no UTF-8, and a path: `os.stat` puts the object into the error."""
    found = crossed(FileNotFoundError(errno.ENOENT, "No such \ud800", Path("model")))
    assert (str(found), found.filename) == ("[Errno 2] No such ?: 'model'", "model")


def test_a_request_ends_with_an_error_of_lullms_own():
    assert type(lullm_error_of(plain_error(EngineAsleepError("asleep"), "it"))) is EngineAsleepError
    found = lullm_error_of(plain_error(ZeroDivisionError("a bug"), "it"))
    assert (type(found), str(found)) == (LullmError, "a bug")
