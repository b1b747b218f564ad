"""What only a GPU runs, on the fake one: `gpu-check` from its start to its end, and the tests for a GPU.

    python tests/kit/device/rehearsal.py --out /tmp/rehearsed  # bench/gpu_check.py with toy sizes: five minutes
    pytest -p kit.device.rehearsal -m gpu tests/gpu            # as a plugin: half an hour

Every process that the command starts meets the fake GPU (`kit/rehearsed/`). What a GPU would have done
wrong without a word (`FakeCuda.faults`) goes into a file that they share; it makes the exit status 1.
"""

import atexit
import os
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[2]
DRIVER, FAULTS = "REHEARSAL_DRIVER", "REHEARSAL_FAULTS"
"""Variables: the compiled driver, and the file of faults."""


class SharedFaults(list):
    """Faults that stand in the file at once: a process may end as it likes."""

    def append(self, fault):
        super().append(fault)
        with open(os.environ[FAULTS], "a") as file:
            file.write(f"{os.environ.get('GPU_CHECK_ROW', '')}: {fault}\n")


def enter(index=0):
    """Put the fake GPU in place, the last that this process sees, until it ends."""
    os.environ["TRITON_INTERPRET"] = "1"  # before anything loads triton
    from fake_cuda import FakeCuda
    from kit.device.fake_driver import FakeDriver, compile_driver

    path = os.environ.get(DRIVER) or compile_driver(Path(tempfile.mkdtemp()))
    gpu = FakeCuda(FakeDriver(Path(path)), index, faults=SharedFaults() if FAULTS in os.environ else [])
    atexit.register(gpu.__enter__().__exit__, None, None, None)
    return gpu


def environment(driver, faults):
    """Of `gpu_check.py`: (the compiled driver, the file of faults) -> its variables."""
    places = [
        TESTS / "kit" / "rehearsed",
        TESTS.parent / "src",
        TESTS,
        *os.environ.get("PYTHONPATH", "").split(os.pathsep),
    ]
    path = os.pathsep.join(str(place) for place in places if str(place) != "")
    return {**os.environ, "PYTHONPATH": path, DRIVER: str(driver), FAULTS: str(faults)}


def main():
    sys.path[:0] = [str(TESTS), str(TESTS.parent / "src")]
    from kit.device.fake_driver import compile_driver

    with tempfile.TemporaryDirectory() as folder:
        driver, faults = compile_driver(Path(folder)), Path(folder, "faults")
        command = [sys.executable, str(TESTS.parent / "bench" / "gpu_check.py"), *sys.argv[1:]]
        status = subprocess.run(command, env=environment(driver, faults)).returncode
        found = faults.read_text() if faults.exists() else ""
    print(f"fake GPU: {found or 'no faults'}")
    raise SystemExit(status or int(bool(found)))


def pytest_configure(config):
    config.fake_cuda = enter()


def pytest_terminal_summary(terminalreporter, config):
    gpu = config.fake_cuda
    terminalreporter.write_line(
        f"fake GPU: {len(gpu.faults)} faults, {gpu.num_replays} replays, {len(gpu.copies)} copies"
    )
    for fault in list(dict.fromkeys(gpu.faults))[:3]:
        terminalreporter.write_line(fault)


if __name__ == "__main__":
    main()
