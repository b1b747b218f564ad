"""A pytest plugin: the tests that need a GPU, on the fake one. `pytest -p rehearsal -m gpu tests/gpu`: minutes."""

import importlib.util
import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before anything loads triton


def pytest_configure(config):
    from fake_cuda import FakeCuda

    path = Path(__file__).parent / "arena" / "conftest.py"
    spec = importlib.util.spec_from_file_location("arena_conftest", path)
    arena = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arena)
    config.fake_cuda = FakeCuda(arena.FakeDriver(arena.compile_driver(Path(tempfile.mkdtemp()))))
    config.fake_cuda.__enter__()


def pytest_unconfigure(config):
    config.fake_cuda.__exit__(None, None, None)


def pytest_terminal_summary(terminalreporter, config):
    gpu = config.fake_cuda
    terminalreporter.write_line(
        f"fake GPU: {len(gpu.races)} races, {gpu.num_replays} replays, {len(gpu.copies)} copies"
    )
    for race in list(dict.fromkeys(gpu.races))[:3]:
        terminalreporter.write_line(race)
