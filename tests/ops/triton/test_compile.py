"""The kernels compile for compute capability 9.0, with the shipped tiles: they fit into its shared memory and
its registers.

Triton's package brings all that this takes; no GPU is needed. In a process of its own, since here they are interpreted.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lullm.ops.triton import tile

MAX_SHARED_BYTES = 227 * 1024
MAX_SPILLED_BYTES = 16
"""Of a thread: a few registers that are set aside once cost nothing. Drawing has 12 with Triton 3.9, none with 3.6."""

CACHES = {1: "fp8e4nv", 2: "bf16", 4: "fp32"}
SHIPPED = [
    f"{kind}-{CACHES[item_bytes]}-{head_size}"
    for kind, tiles in (
        ("decode", tile._DECODE),
        ("prefill", tile._PREFILL),
        ("split", tile._PREFILL),
        ("invariant", tile._PREFILL),
    )
    for _, item_bytes, head_size in tiles
]


def assert_compiles(names, tmp_path):
    script = Path(__file__).with_name("compile_kernels.py")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(script), *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {name: (int(shared), int(spilled)) for name, shared, spilled in map(str.split, done.stdout.splitlines())}
    assert list(found) == names
    assert all(shared <= MAX_SHARED_BYTES and spilled <= MAX_SPILLED_BYTES for shared, spilled in found.values()), found


def test_usual_kernels(tmp_path):
    assert_compiles(
        [
            "decode-bf16-128",
            "prefill-bf16-128",
            "split-bf16-128",
            "invariant-bf16-128",
            "rope",
            "norm",
            "silu",
            "copy",
            "draw",
            "linear",
        ],
        tmp_path,
    )


@pytest.mark.slow
def test_all_shipped_tiles(tmp_path):
    assert_compiles(SHIPPED, tmp_path)
