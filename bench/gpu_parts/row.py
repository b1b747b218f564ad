"""The rows of `gpu_check.py`: what each runs, and how long it may take."""

import importlib
import os
import shutil
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_parts.line import Lines

BENCH = Path(__file__).parent.parent
ROOT = BENCH.parent


@dataclass(frozen=True, slots=True)
class Row:
    """`run` is 'module:function' of a `Lines`; or `tests` are given to pytest; or a `tool` runs the module.

    workers: processes of pytest that share the device, where most of the time is compiling.
    """

    name: str
    limit_s: int
    settles: str
    run: str = ""
    tests: tuple[str, ...] = ()
    tool: tuple[str, ...] = ()
    workers: int = 1


FIRST = (
    Row("facts", 15, "what machine this is", "gpu_parts.facts:run"),
    Row("contact", 40, "the driver: arenas, graphs over them, pinned memory", "gpu_parts.contact:run"),
    Row("kernels", 60, "all kernels at production shapes, against float32", "gpu_parts.correctness:run"),
    Row("engine", 55, "graphs, overlap, hidden waits, sleep, prefix hits, swap", "gpu_parts.engine:run"),
    Row("profile", 40, "where the time of a step goes", "gpu_parts.profile:run"),
    Row("host", 35, "what the host's part of a step costs", "gpu_parts.host:run"),
    Row("products", 40, "ceilings, cuBLAS and tiles at few rows", "gpu_parts.products:run"),
    Row("tiles", 80, "the tiles of attention, the goals of its kernels", "gpu_tiles:run"),
    Row("swap", 30, "how many programs may copy beside a product", "gpu_parts.swap:run"),
    Row("sleep", 70, "sleep and wake-up of 8B, by parts", "gpu:run_sleep"),
    Row("goals", 95, "decoding of 8B and 0.6B, the mix", "gpu:run_goals"),
)
"""In this order: what the others stand on comes first. Together less than ten minutes."""

_SANITIZED = "gpu_parts.rest.sanitized:run"
REST = (
    Row("kernel-tests", 170, "tests/ops/triton on the device", tests=("tests/ops/triton",), workers=8),
    Row("engine-tests", 140, "transformers' tokens, preemption", tests=("tests/gpu/test_engine.py",)),
    Row("family-tests", 240, "every family, the CPU's tokens", tests=("tests/gpu/test_families.py",),
        workers=12),
    Row("feature-tests", 170, "adapters, guesses, a fleet, what prompts may have, embeddings",
        tests=("tests/gpu/test_features.py", "tests/gpu/test_inputs.py"), workers=12),
    Row("sleep-tests", 90, "20 cycles, two engines", tests=("tests/gpu/test_sleep.py",)),
    Row("memcheck", 90, "reads and writes out of bounds", _SANITIZED, tool=("compute-sanitizer",)),
    Row("racecheck", 90, "shared memory without a barrier", _SANITIZED,
        tool=("compute-sanitizer", "--tool", "racecheck")),
    Row("figures", 60, "every kernel at several sizes", "gpu:run_kernels"),
    Row("peer", 190, "the mix through transformers", "gpu:run_peer"),
    Row("more-tiles", 260, "fp8 caches and head size 64", "gpu_tiles:run_rest"),
)  # fmt: skip
"""The long rest. A row by itself: `--rest --only peer`."""

ROWS = {row.name: row for row in (*FIRST, *REST)}


def command_of(row: Row, lines: Path) -> list[str] | None:
    """What runs a row in a process of its own; None: its tool is not installed.

    The stacks of a test that hangs are printed right before the row's limit: to print them while the test still runs
    can end the process by a signal (Python 3.11), and with it all tests behind.
    """
    if row.tests:
        pytest = [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "-p", "gpu_parts.rest.pytest_lines",
                  "-o", "filterwarnings=", "-o", f"faulthandler_timeout={row.limit_s - 20}",
                  "-m", "not slow"]  # fmt: skip
        workers = ["-n", str(row.workers)] if row.workers > 1 and find_spec("xdist") else []
        return [*pytest, *workers, "--ignore=tests/ops/triton/test_compile.py", *row.tests]
    command = [sys.executable, str(BENCH / "gpu_check.py"), "--row", row.name, "--lines", str(lines)]
    if row.tool:
        found = shutil.which(row.tool[0])
        return None if found is None else [found, *row.tool[1:], "--error-exitcode", "9", *command]
    return command


def environment_of(row: Row, lines: Path) -> dict[str, str]:
    places = [str(ROOT / "src"), str(BENCH), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "HF_HUB_OFFLINE": "1",
        "TRITON_INTERPRET": "0",
        "GPU_CHECK_LINES": str(lines),
        "GPU_CHECK_ROW": row.name,
    }


def run_here(name: str, lines: Path) -> None:
    module, function = ROWS[name].run.split(":")
    getattr(importlib.import_module(module), function)(Lines(lines, name))
