"""The benchmarks as modules: they are scripts that import each other by their folder."""

import importlib
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parent.parent.parent / "bench"


@pytest.fixture
def script(monkeypatch):
    """`script(name)`: the module of bench/NAME.py, forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]
