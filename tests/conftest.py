"""The environment of all tests, and tiny checkpoints. One thread: tiny matrices are not worth two."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import atexit
import gc
import importlib
import logging
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from kit.folder.checkpoint import write_checkpoint
from kit.pairs import thin
from kit.ready_process import ReadyPopen

from lullm.config import user_option
from lullm.engine.process import spawn
from lullm.engine.start import head_start
from lullm.executor.mp import processes

STARTERS = (spawn, processes)
BENCH = Path(__file__).parent.parent / "bench"

if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # no GPU: kernels are interpreted; read when triton is imported
else:
    os.environ.setdefault("LULLM_DEVICE", "cpu")  # of commands; see also `_auto_is_the_cpu`

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job, to which Ctrl-C is not sent
    signal.signal(signal.SIGINT, signal.default_int_handler)


atexit.register(gc.unfreeze)
"""Extensions complain of what is never collected. Later than the two full collections with which pytest itself ends."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of this is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    thin(items)


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_no_garbage() -> None:
    """25,000 tests and the modules that they import stay to the end, and each full collection looked at them for half a
    second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _frozen_objects_are_not_counted() -> Iterator[None]:
    """There are 1.2 million, and each start of an engine took 0.1 s to find that out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(head_start, "_anything_is_frozen", lambda: True)
        yield


@pytest.fixture(autouse=True, scope="session")
def _processes_start_at_once() -> Iterator[None]:
    """Those of workers and engines took 3 s of importing each. What scripts and servers of tests start is fresh."""
    ready = SimpleNamespace(**vars(subprocess) | {"Popen": ReadyPopen})
    with pytest.MonkeyPatch.context() as patch:
        for module in STARTERS:
            patch.setattr(module, "subprocess", ready)
        yield


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """`script(name)`: the module of bench/NAME.py, forgotten afterwards, with those it imports by their folder."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCH))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(BENCH) in str(getattr(sys.modules[name], "__file__", None)):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _auto_is_the_cpu() -> Iterator[None]:
    """On every machine: the tests of a GPU name it."""
    with pytest.MonkeyPatch.context() as patch:  # not the test's own, which would be undone after its other fixtures
        patch.setattr(user_option, "why_auto_is_cpu", lambda: "tests run on the CPU")
        yield


@pytest.fixture(autouse=True)
def _log_level() -> Iterator[None]:
    """Commands set the level of lullm's log; a test that reads the log of INFO failed behind one that had run one."""
    log = logging.getLogger("lullm")
    level = log.level
    yield
    log.setLevel(level)


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("llama"), "llama", tie_word_embeddings=True)


@pytest.fixture(scope="session")
def mixed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of six layers the third and the sixth have full attention, the others a window of 32 tokens."""
    kinds = ["sliding_attention", "sliding_attention", "full_attention"] * 2
    options = {"num_hidden_layers": 6, "layer_types": kinds, "use_sliding_window": True, "sliding_window": 32}
    return write_checkpoint(tmp_path_factory.mktemp("mixed"), "qwen3", **options)
