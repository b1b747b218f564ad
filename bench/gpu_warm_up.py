"""Seconds that a GPU's first start compiles kernels, without a GPU: one after the other, and on all cores ahead.

The kernels of a model's steps (`worker/warm_up.py`) are compiled for compute capability 9.0 into empty caches, and
launched by a driver of no device (`gpu_host.py`). Torch's part of a step runs on the CPU.

    python bench/gpu_warm_up.py                  # two layers of Qwen3-0.6B: more have the same kernels
    python bench/gpu_warm_up.py --kind ahead     # in this process, one figure
"""

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import gpu_host
import torch
import triton

OPTIONS: dict[str, Any] = {
    "tokenizer": "demo", "load_format": "dummy", "device": "cpu", "dtype": "bfloat16", "max_model_len": 512,
    "num_gpu_blocks_override": 8, "swap_space": 0,
}  # fmt: skip
KINDS = {"serial": "one after the other", "ahead": "ahead, on all cores", "again": "found on disk"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=("serial", "ahead"), help="in this process; into TRITON_CACHE_DIR, if set")
    parser.add_argument("--rounds", type=int, default=1)
    args = parser.parse_args()
    if args.kind:
        with tempfile.TemporaryDirectory() as empty:
            os.environ.setdefault("TRITON_CACHE_DIR", empty)
            print(json.dumps(warm_up(args.kind)))
        return
    print(f"triton {triton.__version__}, {len(os.sched_getaffinity(0))} cores, compute capability 9.0")
    print("| kernels | s | of these, compiled ahead | compiled behind it |\n|---|--:|--:|--:|")
    for _ in range(args.rounds):
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
            for kind, cache in (("serial", one), ("ahead", other), ("again", other)):
                found = in_process("serial" if kind == "serial" else "ahead", cache)
                print(f"| {KINDS[kind]} | {found['seconds']:.1f} | {found['ahead']} | {found['behind']} |", flush=True)


def in_process(kind: str, cache: str) -> dict[str, float]:
    command = [sys.executable, __file__, "--kind", kind]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def warm_up(kind: str) -> dict[str, float]:
    """Seconds of what a start compiles and launches, and how many kernels were compiled ahead and behind it."""
    gpu_host.stand_in()
    from shape import SHAPES

    from lullm.config.engine import EngineConfig
    from lullm.config.model import ModelConfig
    from lullm.ops.triton import block_copy
    from lullm.ops.triton.table import TRITON_OPS
    from lullm.worker.kv_pools import map_pools
    from lullm.worker.loaded_model import load_model
    from lullm.worker.setup import open_setup
    from lullm.worker.warm_up import compile_ahead, compile_kernels

    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        shape = {**SHAPES["qwen3-0.6b"], "num_hidden_layers": 2, "vocab_size": 151_936}
        Path(folder, "config.json").write_text(json.dumps(shape))
        model_config = ModelConfig.from_folder(Path(folder))
        config = EngineConfig(model=folder, **OPTIONS).resolve(model_config)
        setup = open_setup(config, model_config)
        loaded = load_model(setup, Path(folder))
        setup = replace(setup, ops=TRITON_OPS)
        pools = map_pools(setup, 8, 0)
        stack.callback(pools.close)
        stack.callback(loaded.arena.close)
        stack.enter_context(mock.patch.object(block_copy, "launch_device", lambda: torch.device("cpu")))
        compiled: list[str] = []
        stack.enter_context(mock.patch.object(triton.knobs.compilation, "listener", listener(compiled)))
        started, num_ahead = time.perf_counter(), 0
        if kind == "ahead":
            compile_ahead(setup, loaded.model)
            num_ahead = len(compiled)
        compile_kernels(setup, loaded.model, pools)
        seconds = time.perf_counter() - started
        print(sorted(compiled), file=sys.stderr)
        return {"seconds": seconds, "ahead": num_ahead, "behind": len(compiled) - num_ahead}


def listener(compiled: list[str]) -> object:
    """Notes what was not on disk."""

    def note(*, src: object, cache_hit: bool, **facts: object) -> None:
        if not cache_hit:
            compiled.append(re.sub(r"^_|_kernel$", "", str(getattr(src, "name", ""))))

    return note


if __name__ == "__main__":
    main()
