"""`lullm bench startup`: the time of a fresh process to a ready engine and to its first token."""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lullm.cli.bench.engine import add_measured_engine, measured_config
from lullm.cli.bench.record import check_at_least, write_record
from lullm.cli.flag.model import add_model_argument
from lullm.config.engine import EngineConfig
from lullm.config.gguf.file import shard_paths
from lullm.errors import ConfigError, ModelLoadError, UnsupportedError
from lullm.units import format_bytes

_BLOCK_BYTES = 1 << 24


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the description and flags of `lullm bench startup`."""
    parser.usage = "lullm bench startup [MODEL] [FLAGS]"
    parser.description = (
        "Start a fresh process again and again, and print how long it takes from its birth to a ready "
        "engine and to the first token. Warm starts find the model's files in the page cache. Cold ones do not: the "
        "files are dropped from it before (those of Python and torch stay)."
    )
    add_model_argument(parser)
    parser.add_argument("--num-iters-cold", type=int, default=0, metavar="N", help="(default: %(default)s)")
    parser.add_argument("--num-iters-warm", type=int, default=3, metavar="N", help="(default: %(default)s)")
    parser.add_argument(
        "--pause", type=float, default=0.0, metavar="S", help="seconds before each start (default: %(default)s)"
    )
    add_measured_engine(parser, run)


def run(args: argparse.Namespace) -> int:
    """Measure and report. Raises LullmError."""
    check_at_least(args, 0, "num_iters_cold", "num_iters_warm", "pause")
    if not args.num_iters_cold + args.num_iters_warm:
        raise ConfigError("--num-iters-warm and --num-iters-cold are both 0: there is nothing to measure")
    if args.num_iters_cold and not hasattr(os, "posix_fadvise"):
        raise UnsupportedError("--num-iters-cold: this system cannot drop files from its cache")
    config = measured_config(args)
    files = _files(config)
    runs: dict[str, list[dict[str, Any]]] = {}
    for kind, num in (("cold", args.num_iters_cold), ("warm", args.num_iters_warm)):
        if kind == "warm":
            _read(files)
        for _ in range(num):
            if kind == "cold":
                _drop(files)
            time.sleep(args.pause)
            runs.setdefault(kind, []).append(_start(config))
    for kind, found in runs.items():
        print(_text(kind, found))
    write_record(args, {"runs": runs})
    return 0


def _files(config: EngineConfig) -> list[Path]:
    """The files of the model. Raises ModelLoadError."""
    from lullm.weights.folder import resolve_model

    path = resolve_model(config.model, config.revision)
    return shard_paths(path) if path.is_file() else sorted(file for file in path.iterdir() if file.is_file())


def _drop(files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(files: Sequence[Path]) -> None:
    for path in files:
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass


def _start(config: EngineConfig) -> dict[str, Any]:
    """The figures of one fresh process. Raises ModelLoadError: it failed."""
    command = [
        sys.executable,
        "-m",
        "lullm.cli.bench.birth",
        repr(time.monotonic()),
        json.dumps(dataclasses.asdict(config)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        raise ModelLoadError(f"the process that was started failed: {lines[-1]}")
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _text(kind: str, runs: Sequence[dict[str, Any]]) -> str:
    lines = [f"{len(runs)} {kind} starts, seconds: median, least, most"]
    for name in runs[0]["seconds"]:
        values = [each["seconds"][name] for each in runs]
        lines.append(f"  {name:22}{statistics.median(values):8.2f}{min(values):8.2f}{max(values):8.2f}")
    return "\n".join([*lines, f"  peak memory: {format_bytes(max(each['peak_bytes'] for each in runs))}"])
