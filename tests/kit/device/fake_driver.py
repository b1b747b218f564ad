"""Device back ends over a fake driver (`fake_driver.c`), which the session compiles once."""

import ctypes
import dataclasses
import gc
import shutil
import subprocess
from pathlib import Path

import pytest

from lullm.arena.backend import Backend
from lullm.arena.driver.cuda import cuda_backend
from lullm.arena.driver.npu import npu_backend
from lullm.arena.driver.rocm import rocm_backend
from lullm.units import MIB

BUILDERS = {"cuda": cuda_backend, "rocm": rocm_backend, "npu": npu_backend}
GRANULARITY = 2 * MIB


class FakeDriver:
    """What the tests see of the fake driver: its records, and a way to make it fail."""

    def __init__(self, path: Path):
        self.path = path
        self._library = ctypes.CDLL(str(path))
        self._library.fake_log.restype = ctypes.c_char_p
        self._library.fake_granularity.argtypes = (ctypes.c_uint64,)

    def reset(self) -> None:
        self._library.fake_reset()
        self._library.fake_granularity(GRANULARITY)

    def set_granularity(self, num_bytes: int) -> None:
        self._library.fake_granularity(num_bytes)

    def fail(self, name: str, nth: int, code: int) -> None:
        """The n-th call of this function from now on answers `code`."""
        self._library.fake_fail(name.encode(), nth, code)

    def calls(self, *ignored: str) -> list[tuple[str, *tuple[int, ...]]]:
        """(name, arguments...) of every call since the last `reset`, without these functions."""
        lines = [line.split() for line in self._library.fake_log().decode().splitlines()]
        return [(name, *map(int, values)) for name, *values in lines if name not in ignored]

    def names(self, *ignored: str) -> list[str]:
        return [call[0] for call in self.calls(*ignored)]

    def counts(self) -> dict[str, int]:
        """How many of each are alive."""
        numbers = (ctypes.c_int * 7)()
        self._library.fake_counts(numbers)
        names = ("ranges", "handles", "mappings", "streams", "events", "contexts", "pins")
        return dict(zip(names, numbers, strict=True))

    def build(self, kind: str, **options: object) -> Backend:
        """The back end `kind` over this driver. Its memory is the host's, and torch is told so."""
        options.setdefault("initialize", lambda *_: None)
        backend = BUILDERS[kind](library=self.path, **options)
        return dataclasses.replace(backend, dlpack_device=(1, 0))


def compile_driver(folder: Path) -> Path:
    """Skips the test if there is no compiler."""
    compiler = next((c for c in ("cc", "gcc", "clang", "g++") if shutil.which(c)), None)
    if compiler is None:
        pytest.skip("no C compiler")
    path = folder / "libfake.so"
    source = Path(__file__).with_name("fake_driver.c")
    command = [compiler, "-x", "c", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", path, source]
    subprocess.run(command, check=True)
    return path


@pytest.fixture(scope="session")
def fake_driver_path(tmp_path_factory):
    return compile_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def fake(fake_driver_path):
    """A fake driver with nothing alive, which must be so again at the end of the test."""
    driver = FakeDriver(fake_driver_path)
    driver.reset()
    assert not any(driver.counts().values())
    yield driver
    gc.collect()
    assert not any(driver.counts().values()), driver.counts()
    driver.reset()
