"""Methods that a caller brings along for the workers."""

import pytest

from lullm.errors import ConfigError
from lullm.worker.extension import worker_class
from lullm.worker.remote_methods import REMOTE_METHODS, remote_methods
from lullm.worker.worker import Worker


class Older:
    def inherited(self):
        pass


class Sync(Older):
    communicator = None

    def receive(self):
        pass

    def _inside(self):
        pass


def test_none():
    for nothing in (None, ""):
        assert worker_class(nothing) is Worker and remote_methods(nothing) == REMOTE_METHODS


def test_its_methods_are_a_workers():
    found = worker_class(Sync)
    assert issubclass(found, Worker) and issubclass(found, Sync)
    assert found.shutdown is Worker.shutdown and found.receive is Sync.receive
    assert remote_methods(Sync) - REMOTE_METHODS == {"receive", "inherited"}
    assert not hasattr(Worker, "receive"), "another engine's workers stay as they are"


class Method:
    def wake_up(self): ...


class Attribute:
    model_runner = None


class SetByTheConstructor:
    def setup(self): ...


class Private:
    def _undo(self): ...


class Inherited(Method):
    def fine(self): ...


class WithConstructor:
    def __init__(self):
        self.group = None


@pytest.mark.parametrize(
    ("extension", "words"),
    [
        (Method, "a worker has wake_up already"),
        (Attribute, "a worker has model_runner already"),
        (SetByTheConstructor, "a worker has setup already"),
        (Private, "a worker has _undo already"),
        (Inherited, "a worker has wake_up already"),
        (WithConstructor, "has an __init__, which is not called"),
        ("json:dumps", "is function, not a class"),
        ("json:nothing", "cannot be imported"),
        ("json", "not of the form"),
    ],
)
def test_refused(extension, words):
    with pytest.raises(ConfigError, match=words):
        worker_class(extension)


def test_what_a_constructor_sets_is_declared():
    """`_names_of_workers` reads annotations: a clash with anything else would go unseen."""
    source = set(Worker.__init__.__code__.co_names) | set(Worker.initialize_cache.__code__.co_names)
    assert {"setup", "loaded", "arenas", "_undo", "pools", "model_runner", "_sleeper"} <= source & {
        *Worker.__annotations__
    }
