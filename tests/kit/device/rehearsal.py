"""A pytest plugin: the tests that need a GPU, on the fake one; it takes minutes.

pytest -p kit.device.rehearsal -m gpu tests/gpu
"""

import os
import tempfile
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before anything loads triton


def pytest_configure(config):
    from fake_cuda import FakeCuda
    from kit.device.fake_driver import FakeDriver, compile_driver

    config.fake_cuda = FakeCuda(FakeDriver(compile_driver(Path(tempfile.mkdtemp()))))
    config.fake_cuda.__enter__()


def pytest_unconfigure(config):
    config.fake_cuda.__exit__(None, None, None)


def pytest_terminal_summary(terminalreporter, config):
    gpu = config.fake_cuda
    terminalreporter.write_line(
        f"fake GPU: {len(gpu.faults)} faults, {gpu.num_replays} replays, {len(gpu.copies)} copies"
    )
    for fault in list(dict.fromkeys(gpu.faults))[:3]:
        terminalreporter.write_line(fault)
