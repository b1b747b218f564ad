"""The scripts that measure a GPU as modules, and a fake GPU for them."""

import sys
from pathlib import Path

import pytest
from kit.device.fake_driver import FakeDriver, compile_driver
from kit.rehearsed import toys as toy_sizes

TESTS = Path(__file__).parent.parent
BENCH = TESTS.parent / "bench"


@pytest.fixture
def toys(script, monkeypatch):
    """`script`, and what it imports from now on has toy sizes."""
    for name, module in list(sys.modules.items()):
        if str(BENCH) in str(getattr(module, "__file__", None)):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [toy_sizes.Finder, *sys.meta_path])
    return script


@pytest.fixture(scope="module")
def fake_driver(tmp_path_factory):
    return FakeDriver(compile_driver(tmp_path_factory.mktemp("driver")))


@pytest.fixture
def gpu(fake_driver):
    """A `FakeCuda` in torch's place. No fault may have been seen when the test ends."""
    pytest.importorskip("triton")
    from fake_cuda import FakeCuda

    with FakeCuda(fake_driver) as gpu:
        yield gpu
    assert not gpu.faults, gpu.faults[0]
