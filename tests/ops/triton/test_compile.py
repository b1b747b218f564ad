"""The kernels compile for compute capabilities 8.0, 9.0 and 10.0, with the shipped tiles: they fit into
shared memory and registers. What docs/gpu-tiles.md says of tiles is what the compiler says.

Triton's package brings all that this takes; no GPU is needed. In a process of its own, since here they are interpreted.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from gpu_parts.compiled import MULTIPROCESSORS, Compiled

from lullm.ops.triton import tile

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "gpu-tiles.md"
MAX_SPILLED_BYTES = 16
"""Of a thread: a few registers that are set aside once cost nothing. Drawing has 12 with Triton 3.9, none with 3.6."""

CACHES = {1: "fp8e4nv", 2: "bf16", 4: "fp32"}
SHIPPED = [
    f"{kind}-{CACHES[item_bytes]}-{head_size}-{architecture.removeprefix('sm')}"
    for kind, tiles in (
        ("decode", tile._DECODE),
        ("prefill", tile._PREFILL),
        ("split", tile._PREFILL),
        ("invariant", tile._PREFILL),
    )
    for architecture, item_bytes, head_size in tiles
]


@pytest.fixture(scope="module")
def cache(pytestconfig):
    """Triton's own, kept between runs: what a kernel, its options and a version of Triton give is compiled once."""
    return pytestconfig.cache.mkdir("triton")


def output_of(script, *arguments, cache):
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "bench"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def assert_compiles(names, cache):
    found = {}
    for line in output_of(Path(__file__).with_name("compile_kernels.py"), *names, cache=cache):
        name, values = json.loads(line)
        found[name] = Compiled(**values)
    assert list(found) == names
    wrong = {n: c for n, c in found.items() if not c.programs_at_once or c.spilled_bytes > MAX_SPILLED_BYTES}
    assert not wrong
    return found


def test_usual_kernels(cache):
    attention = ["decode-bf16-128", "prefill-bf16-128"]  # the other forms and capabilities: `test_all_shipped_tiles`
    experts = ["sort", "few", "many", "sum"]
    mutual, rows, draw = ["mutual", "near"], ["rows", "gated rows", "few outputs"], ["scan", "limit", "race"]
    found = assert_compiles(
        [*attention, *experts, "rope", "norm", "silu", "copy", *draw, "linear", *rows, *mutual], cache
    )
    in_chain = {"decode-bf16-128", "rope", "norm", "silu", *draw, *rows}
    assert {name for name, each in found.items() if each.before_wait is not None} == in_chain
    early = {name: set(found[name].before_wait) for name in in_chain if found[name].before_wait}
    assert early == {name: {"ld.global"} for name in rows}, "a tile of the weight, which no kernel writes"
    assert all(found[name].programs_at_once >= 2 for name in mutual)
    assert found["decode-bf16-128"].programs_at_once >= 4, "each has one buffer of keys and values"
    assert found["decode-bf16-128"].spilled_bytes == 0


@pytest.mark.slow
def test_all_shipped_tiles(cache):
    assert_compiles(SHIPPED, cache)


@pytest.mark.slow
def test_all_shipped_tiles_with_soft_caps_sinks_and_windows(cache):
    assert_compiles([f"capped {name}" for name in SHIPPED], cache)


@pytest.mark.parametrize("arguments", [("--kind", "decode", "--shipped")], ids=str)
def test_the_table_of_tiles_is_what_the_compiler_says(arguments, cache):
    """Of the shipped tile, for each compute capability; the whole table takes minutes."""
    text = TABLE.read_text()
    if f"Triton {triton.__version__}" not in text:
        pytest.skip("the table is another version's")
    rows = output_of(ROOT / "bench" / "gpu_occupancy.py", *arguments, cache=cache)
    assert len(rows) == 2 + len(MULTIPROCESSORS)
    behind = [row for row in rows if row not in text]
    assert not behind, "docs/gpu-tiles.md is behind: run bench/gpu_occupancy.py"


def test_programs_at_once():
    """By registers (in pieces of 256 a warp), by shared memory and what each program takes of it, and none."""
    assert Compiled(90, 4, 118, 39424, 0, ()).programs_at_once == 4
    assert Compiled(90, 4, 80, 38400, 0, ()).programs_at_once == 5
    assert Compiled(90, 8, 250, 165000, 0, ()).programs_at_once == 1
    assert Compiled(80, 4, 32, 170 << 10, 0, ()).programs_at_once == 0
    assert Compiled(90, 1, 16, 0, 0, ()).programs_at_once == 32
