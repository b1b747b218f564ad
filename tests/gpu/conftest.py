"""The scripts that measure a GPU as modules, and a fake GPU for them."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
BENCH = TESTS.parent / "bench"


@pytest.fixture
def script(monkeypatch):
    """`script(name)`: the module of bench/NAME.py, forgotten afterwards, with those it imports."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    spec = importlib.util.spec_from_file_location("arena_conftest", TESTS / "arena" / "conftest.py")
    arena = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arena)
    return arena.FakeDriver(arena.compile_driver(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def gpu(fake_driver):
    """A `FakeCuda` in torch's place. No race may have been seen when the test ends."""
    pytest.importorskip("triton")
    from fake_cuda import FakeCuda

    with FakeCuda(fake_driver) as gpu:
        yield gpu
        assert gpu.races == []
